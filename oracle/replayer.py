"""Runs the reference loop again and again, each time in a process of its own: `python -m oracle.replayer SPEC.json`.

The server imports what a run needs, once, and forks for every request, so that a replay starts from a pinned process
in which nothing was trained yet and costs no import. A line on the standard input is a list of requests; the answer is
one line on the standard output, a list of outcomes in the same order.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diffs.captured import read_tensors
from diffs.trace import open_trace
from oracle import floor
from oracle.recorder.trace import TraceWriter
from oracle.tasks import load_task
from oracle.worker import capture, described, die_with_parent, pin
from reference_loop import interpreter, randomness
from reference_loop.loader import count_samples
from reference_loop.moments import Address
from reference_loop.plan import plan
from reference_loop.recipe import from_dict
from reference_loop.semantics import Semantics
from reference_loop.state import State
from reference_loop.task import Task


def main(arguments: list[str]) -> int:
    """Serve requests until the input ends."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    die_with_parent(spec["parent"])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a task prints is no answer
    pin(spec["threads"])
    try:
        randomness.seed(spec["seed"])
        task = load_task(spec["task"])
        warm(task)
    except Exception as error:
        print(json.dumps({"error": described(error)}), file=answers, flush=True)
        return 2
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(serve(task, json.loads(line), spec["processes"])), file=answers, flush=True)
    return 0


def warm(task: Task) -> None:
    """Import whatever building the model imports, without building it here: nothing of the task runs in this process."""
    reader, writer = os.pipe()
    before = set(sys.modules)
    child = os.fork()
    if child == 0:
        try:
            task.model()
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
        except Exception:  # a module made at run time; the replays make their own
            continue


def serve(task: Task, requests: list[dict[str, Any]], processes: int) -> list[dict[str, Any]]:
    """Carry out requests, some at a time, each in a fork; returns their outcomes in order."""
    running: dict[int, Path] = {}
    waiting = list(requests)
    while waiting or running:
        while waiting and len(running) < processes:
            request = waiting.pop(0)
            folder = Path(request["folder"])
            child = os.fork()
            if child == 0:
                os._exit(_in_fork(task, request, folder))
            running[child] = folder
        child, _ = os.wait()
        running.pop(child, None)
    return [_outcome(Path(request["folder"])) for request in requests]


def _in_fork(task: Task, request: dict[str, Any], folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        outcome = {"error": None, **replay(task, request)}
    except Exception as error:
        outcome = {"error": described(error)}
    (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    return 0


def _outcome(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"error": {"type": "Killed", "message": "the process ended without a word", "traceback": ""}}


def replay(task: Task, request: dict[str, Any]) -> dict[str, Any]:
    """One reference run, recorded into the request's folder.

    Returns facts: `samples` of the training data; `nan` is the first address of a parameter, buffer or optimizer state that holds a NaN, else None;
    `local` what `floor.judge` found, where the request asks for it.
    """
    recipe, s = from_dict(request["recipe"]), Semantics.from_flat(request["semantics"])
    folder = Path(request["folder"])
    randomness.seed(recipe.seed)
    state = State(
        task,
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
    return {"nan": nan, **facts}


_KEPT = frozenset({"parameter", "buffer", "optimizer_state"})


class Pins(Mapping[Address, Any]):
    """The values that a recorded run had, where some of them are to be taken.

    folder: the run's trace; tensors must have been captured in full.
    places: [moment, kind, first update]...; None takes every place.
    """

    def __init__(self, folder: str, places: list[list[Any]] | None) -> None:
        self.trace = open_trace(folder)
        self.tensors = read_tensors(folder)
        self.places = None if places is None else {(moment, kind): update for moment, kind, update in places}

    @classmethod
    def of(cls, asked: dict[str, Any] | None) -> Mapping[Address, Any]:
        """The pins that a request asks for, none by default."""
        return cls(asked["trace"], asked["places"]) if asked else {}

    def __contains__(self, address: object) -> bool:
        assert isinstance(address, Address)
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
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
