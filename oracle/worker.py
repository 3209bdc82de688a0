"""One candidate run in a process of its own: `python /path/to/oracle/worker.py SPEC.json`.

Runs in the candidate's own environment, where nothing of ours is installed: only the standard library and torch are
needed. A finder maps our packages to the folder that the spec names, so site-packages of another environment are never
on the path. The result is `outcome.json` in the spec's folder; without one, the process was killed.
"""

from __future__ import annotations

import time

STARTED = time.time()  # before anything slow is imported

import contextlib  # noqa: E402
import faulthandler  # noqa: E402
import importlib.machinery  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import platform  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

PACKAGES = ("oracle", "reference_loop", "diffs")
UNWRITABLE = 74
"""Exit code (EX_IOERR): outcome.json could not be written. Otherwise 0 completed, 1 raised, 2 usage."""


class Finder:
    """Finds our packages in one folder, and nothing else there."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of one of our top-level packages; their submodules are found by the package's own path."""
        return importlib.machinery.PathFinder.find_spec(name, [self.root]) if name in PACKAGES else None


def main(arguments: list[str]) -> int:
    """Run the spec in the file that `arguments` names; returns the exit code."""
    spec = placed(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the parent asks a hung run where it is
    isolate(spec["root"])
    pin(spec["threads"])
    outcome, code = run(spec)
    try:
        write_atomically(Path(spec["folder"]) / outcome_name(spec), outcome)
    except OSError as error:
        said = outcome["error"]["message"] if outcome["error"] else f"cannot write {error.filename}: {error.strerror}"
        say(said)
        return UNWRITABLE
    return code


def placed(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of this process: of several ranks it is the one that the launcher's variables name."""
    return spec if spec["ranks"] == 1 else {**spec, "rank": int(os.environ["RANK"])}


def outcome_name(spec: dict[str, Any]) -> str:
    """The file that the outcome goes to: of several ranks, one each."""
    return "outcome.json" if spec["ranks"] == 1 else f"outcome.{spec['rank']}.json"


def say(text: str) -> None:
    """Print to the standard error, which may be a file on a full disk."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def isolate(root: str) -> None:
    """Make our packages importable from `root`, and our modules nothing else's: this file's folder leaves the path."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.meta_path.insert(0, Finder(root))


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when the thread that started it ends; elsewhere nothing changes.

    parent: the process of that thread; if it is gone already, this process ends. Workers do without: `oracle.guard`
        reaches what a trainer starts, too.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(UNWRITABLE)


def pin(threads: int) -> None:
    """Make torch compute the same bits in every process: a fixed number of threads, deterministic algorithms."""
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def run(spec: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Train as the spec says and record it; returns what outcome.json holds and the exit code."""
    from diffs.verdict import NotComparable
    from oracle.errors import USAGE_ERRORS
    from oracle.job import Interrupted
    from oracle.recorder.probes import Recorder
    from oracle.recorder.trace import TraceError, TraceWriter
    from oracle.resume.entry import Entry
    from oracle.resume.interruption import Interruption
    from oracle.trainers import stated_remedies
    from reference_loop import randomness

    randomness.seed(spec["recipe"].get("seed", 0))
    wanted, budget = capture(spec["capture"]), spec["budget_bytes"] // spec["ranks"]
    writer = TraceWriter(spec["folder"], spec["rank"], spec["digest"], capture=wanted, budget_bytes=budget)
    put = writer.put if spec["ranks"] == 1 else followed(writer.put, spec)
    recorder = Recorder(put, writer.commit, rank=spec["rank"])
    entry = Entry(Path(spec["folder"]), spec["rank"]) if spec["resume_from"] is not None else None
    interruption = Interruption(spec["cut"], recorder, Path(spec["workdir"]), entry)
    job: Any = None
    error: BaseException | None = None
    interrupted = False
    loaded, remedies, before = time.time(), {}, flags(spec["threads"])
    try:
        job, trainer = prepare(spec, recorder)
        loaded, remedies = time.time(), stated_remedies(trainer)
        with recorder:
            if spec["cut"] is not None or spec["watch"]:
                interruption.begin()
            interruption.enter()
            trainer.train(job)
            recorder.finish()
    except Interrupted:
        interrupted = True
    except BaseException as raised:  # SystemExit and KeyboardInterrupt too: how a trainer ends is a result
        error = raised
    struck = interruption.struck
    interruption.end()
    facts = {
        "interrupted": interrupted,
        "struck": struck,
        "saves": interruption.saves.plain(),
        "updates": recorder.updates,
        "batches": recorder.batches,
        "versions": versions(),
        "remedies": remedies,
        "seconds": {"start": STARTED - spec["started"], "import": loaded - STARTED, "train": time.time() - loaded},
    }
    seen = {
        "flags": flags(spec["threads"]),
        "flags_before": before,
        "devices": recorder.devices,
        "shards": recorder.shards,
        "reconfigured": job.reconfigured if job else {},
    }
    try:
        writer.close({**{key: spec[key] for key in MANIFEST}, **seen, **facts})
    except TraceError as unwritable:
        error = error or unwritable
    ours = (*USAGE_ERRORS, TraceError, NotComparable)
    status, code = ("completed", 0) if error is None else ("usage", 2) if isinstance(error, ours) else ("raised", 1)
    said = None if error is None else described(error)
    if said is not None and status == "raised":
        say(said["traceback"])
    return {"status": status, "error": said, **facts}, code


def followed(put: Any, spec: dict[str, Any]) -> Any:
    """`put`, with a note of each place on the way."""
    from oracle.ranks import Whereabouts
    from reference_loop.moments import causal_key

    whereabouts = Whereabouts(Path(spec["folder"]), spec["rank"])

    def follow(address: Any, value: Any) -> None:
        whereabouts.note(causal_key(address), address.update, address.micro, address.moment)
        put(address, value)

    return follow


MANIFEST = ("kind", "command", "task", "trainer", "recipe", "semantics", "device", "digest")
"""What the trace's manifest repeats of the spec."""


def prepare(spec: dict[str, Any], recorder: Any) -> tuple[Any, Any]:
    """The job and the trainer that the spec names.

    Raises:
        TaskError, TrainerError, RecipeError, SemanticsError: one of them cannot be loaded.
    """
    from oracle.job import Job
    from oracle.tasks import load_task
    from oracle.trainers import load_trainer
    from reference_loop.recipe import from_dict
    from reference_loop.semantics import Semantics

    job = Job(
        load_task(spec["task"]),
        from_dict(spec["recipe"]),
        semantics=Semantics.from_flat(spec["semantics"]),
        workdir=Path(spec["workdir"]),
        device=spec["device"],
        resume_from=spec["resume_from"],
        rank=spec["rank"],
        ranks=spec["ranks"],
        recorder=recorder,
    )
    return job, load_trainer(spec["trainer"], spec["arguments"])


def capture(asked: Any) -> Any:
    """Which tensor addresses are written in full: (address) -> bool, or None for digests alone.

    asked: None, "all", or {"moments": [[update, moment, kind or None], ...]}, None meaning every kind.
    """
    if asked is None:
        return None
    if asked == "all":
        return lambda address: True
    places = {(update, moment, kind) for update, moment, kind in asked["moments"]}
    return lambda address: (
        (address.update, address.moment, address.kind) in places or (address.update, address.moment, None) in places
    )


def described(error: BaseException) -> dict[str, str]:
    """An exception as outcome.json holds it, without this file's own frames."""
    inner = error.__traceback__
    while inner is not None and inner.tb_next is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    try:
        message = str(error)
    except Exception:  # a class of the user's own may fail even here
        message = ""
    return {
        "type": type(error).__name__,
        "message": message,
        "traceback": "".join(traceback.format_exception(type(error), error, inner)),
    }


def versions() -> dict[str, str]:
    """Python, torch, numpy, and the adapted packages that this process has imported."""
    from oracle.trainers import installed, list_trainers

    found = {"python": platform.python_version(), "torch": sys.modules["torch"].__version__}
    for package, module in [("numpy", "numpy"), *((listed.package, listed.name) for listed in list_trainers())]:
        version = installed(package) if {package, module} & sys.modules.keys() else None  # pytorch-ignite is ignite
        if version is not None:
            found[package] = version
    return found


def flags(threads: int) -> dict[str, Any]:
    """What decides bits and is neither recipe nor version."""
    import torch

    spread = torch.distributed.is_available() and torch.distributed.is_initialized()
    return {
        "threads": torch.get_num_threads(),
        "threads_asked": threads,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "default_dtype": str(torch.get_default_dtype()),
        "distributed_backend": torch.distributed.get_backend() if spread else None,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "hash_seed": os.environ.get("PYTHONHASHSEED"),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file that is there as a whole or not at all."""
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.replace(aside, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
