"""Runs in processes of their own that cost no import: `python /path/to/oracle/forkserver.py SPEC.json`.

The server imports what a run needs, once, and forks for every request, so that each run starts from a pinned process
in which nothing was trained yet. A line on the standard input is a list of requests; the answer is one line on the
standard output, a list of outcomes in the same order. Like a worker it runs in the candidate's environment, so that a
task's model comes from the same libraries on both sides.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reference_loop.moments import Address


NEEDED = (
    "oracle.floor", "oracle.job", "oracle.recorder.probes", "oracle.recorder.trace", "oracle.tasks", "oracle.trainers",
    "reference_loop.interpreter", "reference_loop.plan", "reference_loop.state", "torch.optim", "torch.utils.data",
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
                os._exit(_in_fork(request))
            running.add(child)
            children.append(child)
        child, status = os.wait()
        if child in running:  # otherwise a process that a task left behind
            running.remove(child)
            codes[child] = os.waitstatus_to_exitcode(status)
    return [_outcome(Path(request["folder"]), codes[child]) for request, child in zip(requests, children, strict=True)]


def _in_fork(request: dict[str, Any]) -> int:
    """Carry out one request, within its time; what it prints goes to files beside its outcome."""
    from oracle.worker import described, run, write_atomically

    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for stream, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    if request["timeout"] is not None:
        signal.setitimer(signal.ITIMER_REAL, request["timeout"])
    try:
        outcome = run(request)[0] if request["kind"] == "candidate" else {"error": None, **replay(request)}
    except Exception as error:
        outcome = {"error": {**described(error), "message": told(error, request["task"])}}
    sys.stdout.flush()
    sys.stderr.flush()
    write_atomically(folder / "outcome.json", outcome)
    return 0


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


def _outcome(folder: Path, code: int) -> dict[str, Any]:
    """What a fork wrote, with the exit code of its process: negative for the signal that ended it."""
    try:
        return {**json.loads((folder / "outcome.json").read_text(encoding="utf-8")), "exit_code": code}
    except FileNotFoundError:
        words = f"the process ended without a word, exit code {code}"
        return {"error": {"type": "Killed", "message": words, "traceback": ""}, "exit_code": code}


def replay(request: dict[str, Any]) -> dict[str, Any]:
    """One reference run, recorded into the request's folder.

    Returns facts: `samples` of the training data; `units`, [epoch, index, counts] of each batch; `nan`, the first
    address of a parameter, buffer or optimizer state that holds a NaN, or None; `local`, what `floor.judge` found,
    where the request asks for it.
    """
    from oracle import floor
    from oracle.recorder.trace import TraceWriter
    from oracle.tasks import load_task
    from oracle.worker import capture
    from reference_loop import interpreter, randomness
    from reference_loop.loader import count_samples
    from reference_loop.plan import plan
    from reference_loop.recipe import from_dict
    from reference_loop.semantics import Semantics
    from reference_loop.state import State

    recipe, s = from_dict(request["recipe"]), Semantics.from_flat(request["semantics"])
    folder = Path(request["folder"])
    randomness.seed(recipe.seed)
    state = State(
        load_task(request["task"]),
        recipe,
        drop_last=s.data.tail == "drop",
        workdir=folder / "work",
        device=request["device"],
        overrides=request["overrides"],
    )
    writer = TraceWriter(
        folder, digest=request["digest"], capture=capture(request["capture"]), budget_bytes=request["budget_bytes"]
    )
    nan: Address | None = None

    def observe(address: Address, value: Any) -> None:
        nonlocal nan
        writer.put(address, value)
        if nan is None and address.kind in _KEPT and value.is_floating_point() and bool(value.isnan().any()):
            nan = address

    samples = count_samples(state.loader.data)
    operations = plan(recipe, s, samples)
    facts: dict[str, Any] = {"samples": samples}
    if request["local"]:
        facts["local"] = floor.judge(operations, state, Pins(request["local"], None), through=request["through"])
    else:
        pins = Pins.of(request["pins"])
        interpreter.run(operations, state, observe, pins=pins, through=request["through"])
        writer.close({"kind": "reference", "recipe": request["recipe"], "semantics": request["semantics"]})
    units = [[*batch, counts] for batch, counts in state.units.items()]
    return {"nan": nan, "units": units, **facts}


_KEPT = frozenset({"parameter", "buffer", "optimizer_state"})


class Pins(Mapping["Address", Any]):
    """The values that a recorded run had, where some of them are to be taken.

    folder: the run's trace; tensors must have been captured in full.
    places: [moment, kind, first update]...; None takes every place.
    """

    def __init__(self, folder: str, places: list[list[Any]] | None) -> None:
        from diffs.captured import read_tensors  # needs safetensors, which only runs with pins do
        from diffs.trace import open_trace

        self.trace = open_trace(folder)
        self.tensors: Mapping[Any, Any] = read_tensors(folder)
        self.places = None if places is None else {(moment, kind): update for moment, kind, update in places}

    @classmethod
    def of(cls, asked: dict[str, Any] | None) -> Mapping[Address, Any]:
        """The pins that a request asks for, none by default."""
        return cls(asked["trace"], asked["places"]) if asked else {}

    def __contains__(self, asked: object) -> bool:
        address: Address = asked  # type: ignore[assignment]
        if self.places is not None:
            first = self.places.get((address.moment, address.kind))
            if first is None or address.update < first:
                return False
        return address in self.tensors or self._scalar(address) is not None

    def __getitem__(self, address: Address) -> Any:
        return self.tensors[address] if address in self.tensors else self._scalar(address)

    def _scalar(self, address: Address) -> Any:
        row = self.trace.row(address)
        return None if row is None else row.content

    def __iter__(self) -> Iterator[Address]:
        yield from self.tensors

    def __len__(self) -> int:
        return len(self.tensors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
