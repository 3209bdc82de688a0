"""Runs in processes of their own that cost no import: `python /path/to/oracle/forkserver.py SPEC.json`.

The server imports what a run needs, once, and forks for every request, so that each run starts from a pinned process
in which nothing was trained yet. A line on the standard input is a list of requests; the answer is one line on the
standard output, a list of outcomes in the same order. Like a worker it runs in the candidate's environment, so that a
task's model comes from the same libraries on both sides.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NEEDED = (
    "oracle.job", "oracle.recorder.probes", "oracle.reference", "oracle.trainers", "torch.optim", "torch.utils.data",
)  # fmt: skip
"""What a run imports; here once, for all of them."""


def main(arguments: list[str]) -> int:
    """Serve requests until the input ends."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    sys.path[0] = spec["root"]
    from oracle import worker

    sys.path.pop(0)
    worker.isolate(spec["root"])
    worker.die_with_parent(spec["parent"])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a task prints is no answer
    worker.pin(spec["threads"])
    for name in (*NEEDED, *spec["imports"]):
        importlib.import_module(name)
    if spec["task"] is not None:
        warm(spec["task"])
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, all that is shared
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line), spec["processes"])), file=answers, flush=True)
    return 0


def warm(task: str) -> None:
    """Import whatever loading a task and building its model imports; the task itself is loaded in every run anew."""
    reader, writer = os.pipe()
    before = set(sys.modules)
    child = os.fork()
    if child == 0:
        from oracle.tasks import load_task

        try:
            load_task(task).model()
        finally:
            with os.fdopen(writer, "w") as pipe:
                pipe.write("\n".join(name for name in sys.modules if name not in before))
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        names = pipe.read().split()
    os.waitpid(child, 0)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # made at run time, as the task's own module is; every run makes its own
            continue


def serve(requests: list[dict[str, Any]], processes: int) -> list[dict[str, Any]]:
    """Carry out requests, some at a time, each in a fork; returns their outcomes in order."""
    running: set[int] = set()
    waiting = list(requests)
    codes: dict[int, int] = {}
    children: list[int] = []
    while waiting or running:
        while waiting and len(running) < processes:
            request = waiting.pop(0)
            child = os.fork()
            if child == 0:
                os._exit(_in_fork(request, processes))
            running.add(child)
            children.append(child)
        child, status = os.wait()
        if child in running:  # otherwise a process that a task left behind
            running.remove(child)
            codes[child] = os.waitstatus_to_exitcode(status)
    return [_answer(request, codes[child]) for request, child in zip(requests, children, strict=True)]


def _in_fork(request: dict[str, Any], processes: int) -> int:
    """Carry out one request, within its time; what it prints goes to files beside its outcome."""
    from oracle import reference
    from oracle.resume import replay
    from oracle.worker import write_atomically

    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for stream, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    if request["kind"] == "candidate" and request["ranks"] > 1:
        write_atomically(folder / "outcome.json", _on_ranks(request))
        return 0
    if request["timeout"] is not None:
        signal.setitimer(signal.ITIMER_REAL, request["timeout"])
    if request["kind"] == "candidate":
        write_atomically(folder / "outcome.json", _candidate(request))
    elif request["kind"] == "resumption":
        replay.carry_out(request, told)
    else:
        reference.Reference(request, processes).run(told)
    sys.stdout.flush()
    sys.stderr.flush()
    return 0


class _Fork:
    """One rank's process, as `oracle.ranks` watches it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            ended, status = os.waitpid(self.number, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.number, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _on_ranks(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a candidate's request on all its ranks, each in a fork."""
    from oracle import ranks
    from oracle.worker import die_with_parent, outcome_name, write_atomically

    folder, parent, port = Path(request["folder"]), os.getpid(), ranks.free_port()
    forks = {}
    for rank in range(request["ranks"]):
        child = os.fork()
        if child == 0:
            die_with_parent(parent)
            for stream, name in ((1, f"stdout.{rank}.txt"), (2, f"stderr.{rank}.txt")):
                os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            os.environ.update(ranks.environment(rank, request["ranks"], port))
            faulthandler.register(signal.SIGUSR1)
            own = {**request, "rank": rank}
            outcome = _candidate(own)
            write_atomically(folder / outcome_name(own), outcome)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0 if outcome.get("status") == "completed" else 1)
        forks[rank] = _Fork(child)
    return ranks.supervise(forks, folder, request["timeout"])


def _candidate(request: dict[str, Any]) -> dict[str, Any]:
    from oracle.worker import described, run

    try:
        return run(request)[0]
    except Exception as error:
        return {"error": {**described(error), "message": told(error, request["task"])}}


def told(error: Exception, task: str) -> str:
    """What a reference run that raised says to a user: the message of a known error, else what was raised and where."""
    from diffs.verdict import NotComparable
    from oracle import pyfile
    from oracle.errors import USAGE_ERRORS
    from oracle.recorder.trace import TraceError

    if isinstance(error, (*USAGE_ERRORS, TraceError, NotComparable)):
        return str(error)
    what = pyfile.raised(error, Path(task))
    return f"the reference loop cannot train {task}: {what}: mend the task, or the recipe; --debug shows the traceback"


def _answer(request: Mapping[str, Any], code: int) -> dict[str, Any]:
    """The outcome of a request, and those of the readings that branched off it as `branches`."""
    branches = [_outcome(Path(branch["folder"]), code) for branch in request.get("branches", ())]
    return {**_outcome(Path(request["folder"]), code), "branches": branches}


def _outcome(folder: Path, code: int) -> dict[str, Any]:
    """What a fork wrote, with the exit code of its process: negative for the signal that ended it."""
    try:
        return {**json.loads((folder / "outcome.json").read_text(encoding="utf-8")), "exit_code": code}
    except FileNotFoundError:
        words = f"the process ended without a word, exit code {code}"
        return {"error": {"type": "Killed", "message": words, "traceback": ""}, "exit_code": code}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
