"""One run of a trainer that is timed, in turns with another: `python /path/to/oracle/evaluate/stopwatch.py SPEC.json`.

Nothing is recorded: a hook at the end of each optimizer step reads the clocks, and after every block of updates waits
until it is this process's turn again. So a load of the machine meets both sides alike. Like a worker it runs in the
candidate's environment; it answers by lines of JSON in the file `answers`, and takes its turns from `turns`, both named
pipes in the spec's folder, a pair for each rank.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

PAGE = os.sysconf("SC_PAGE_SIZE")


class Stopwatch:
    """Counts updates, and times blocks of them.

    folder: holds the two pipes of the rank. warmup: updates before the first block. block: updates in each.
    """

    def __init__(self, folder: Path, rank: int, warmup: int, block: int) -> None:
        self.answers = open(folder / f"answers.{rank}", "w", encoding="utf-8")  # noqa: SIM115
        self.turns = open(folder / f"turns.{rank}", encoding="utf-8")  # noqa: SIM115
        self.warmup, self.block, self.updates = warmup, block, 0
        self.began = (0.0, 0.0)

    def step(self, *_: Any) -> None:
        """An optimizer step has ended."""
        self.updates += 1
        if self.updates == 1:
            self.answer(first_update=time.time())
        over = self.updates - self.warmup
        if over == 0:
            self.wait()
        elif over > 0 and over % self.block == 0:
            wall, cpu = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
            self.answer(wall=wall, cpu=cpu, resident=resident(), updates=self.updates, peak=peak())
            self.wait()

    def wait(self) -> None:
        """Wait for a turn; the clocks start with it."""
        self.answer(waiting=True)
        if not self.turns.readline():
            os._exit(0)  # nobody asks any more
        self.began = (time.perf_counter(), time.process_time())

    def answer(self, **facts: Any) -> None:
        """Tell something."""
        print(json.dumps(facts), file=self.answers, flush=True)


def resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def peak() -> int:
    """The most bytes of this process that were in memory at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(arguments: list[str]) -> int:
    """Train as the spec says, in turns; returns the exit code."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    sys.path[0] = spec["root"]
    from oracle import worker

    sys.path.pop(0)
    spec = worker.placed(spec)
    worker.isolate(spec["root"])
    worker.pin(spec["threads"])
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from oracle.errors import USAGE_ERRORS
    from reference_loop import randomness

    watch = Stopwatch(Path(spec["folder"]), spec["rank"], **spec["timed"])
    error: BaseException | None = None
    try:
        randomness.seed(spec["recipe"].get("seed", 0))
        job, trainer = worker.prepare(spec, None)
        register_optimizer_step_post_hook(watch.step)
        trainer.train(job)
    except BaseException as raised:  # how a trainer ends is a result
        error = raised
    status = "completed" if error is None else "usage" if isinstance(error, USAGE_ERRORS) else "raised"
    described = None if error is None else worker.described(error)
    outcome = {"status": status, "error": described, "peak": peak(), "versions": worker.versions()}
    worker.write_atomically(Path(spec["folder"]) / worker.outcome_name(spec), outcome)
    watch.answer(ended=status)
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
