"""Reference runs as a replay asks for them: several readings in one run, each leaving it where its plan does.

Runs in the candidate's own environment, in a fork of `oracle.forkserver`: only the standard library and torch, except
that pinned values are read with safetensors.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from oracle import floor
from oracle.branches import Slots, divisible, explore, open_files, through
from oracle.left import left_to_others
from oracle.recorder.trace import TraceWriter
from oracle.tasks import load_task
from oracle.worker import capture, described, write_atomically
from reference_loop import interpreter, randomness
from reference_loop.loader import count_samples
from reference_loop.moments import SHARDED_KINDS, Address, parameter_of
from reference_loop.operations import Operation
from reference_loop.plan import plan
from reference_loop.recipe import from_dict
from reference_loop.semantics import Semantics
from reference_loop.state import State
from reference_loop.world import World, interleaved


class Whole(Exception):
    """This run cannot be forked midway: its readings have to be run one by one."""


class Reference:
    """One run of the reference from its start, recorded, with the readings that branch off it.

    request: of `oracle.replays.Replays`. Its `branches` are readings that share all with it but their semantics.
    processes: how many may go on at a time.

    Each reading leaves `outcome.json` in its folder: `error`, or `samples` of the training data; `units`, [epoch,
    index, counts] of each batch; `nan`, the first address of a parameter, buffer or optimizer state that holds a NaN,
    or None; `local`, what `floor.judge` found, where the request asks for it. `whole` says that nothing was run,
    because the process could not be forked.
    """

    def __init__(self, request: dict[str, Any], processes: int) -> None:
        self.request = request
        self.readings = [request, *request["branches"]]
        self.mine = list(range(len(self.readings)))  # what this process carries out
        self.slots = Slots(processes - 1)
        self.lent = False  # whether this process goes on in a slot
        self.children: list[int] = []
        self.nan: Address | None = None

    def run(self, told: Any) -> None:
        """Carry the readings out.

        told: what an exception says to a user, (exception, task file) -> str.
        """
        outcome: dict[str, Any] = {"error": None}
        try:
            outcome |= self._judged() if self.request["local"] else self._recorded()
        except Whole:
            outcome["whole"] = True
        except Exception as error:
            outcome["error"] = {**described(error), "message": told(error, self.request["task"])}
        self._leave(outcome)

    def _start(self) -> list[list[Operation]]:
        """Build the state that training begins with; returns the plans of all readings."""
        request = self.request
        self.held = open_files()
        self.ours = [Path(request["folder"]).resolve()]
        if request["pins"]:
            self.ours.append(Path(request["pins"]["trace"]).resolve())
        recipe = from_dict(request["recipe"])
        semantics = [Semantics.from_flat(reading["semantics"]) for reading in self.readings]
        randomness.seed(recipe.seed)
        self.ranks = recipe.parallel.ranks
        self.states = [
            State(
                load_task(request["task"]),
                recipe,
                drop_last=semantics[0].data.tail == "drop",
                rank=rank,
                workdir=Path(request["folder"]) / "work" if rank == 0 else None,
                device=request["device"],
                overrides=request["overrides"],
            )
            for rank in range(self.ranks)
        ]
        self.run_on: Any = self.states[0] if self.ranks == 1 else World(self.states)
        self.samples = count_samples(self.states[0].loader.data)
        plans = [list(plan(recipe, s, self.samples)) for s in semantics]
        return plans if self.ranks == 1 else [list(interleaved(each, self.ranks)) for each in plans]

    def _facts(self) -> dict[str, Any]:
        known = self.states[0].units if self.ranks == 1 else {}  # of several ranks, each has counts of its own
        return {"samples": self.samples, "units": [[*batch, counts] for batch, counts in known.items()]}

    def _judged(self) -> dict[str, Any]:
        (operations,) = self._start()
        candidate = Pins(self.request["local"], None, self.request["shards"])
        local = floor.judge(operations, self.run_on, candidate, through=self.request["through"])
        return {"nan": None, "local": local, **self._facts()}

    def _recorded(self) -> dict[str, Any]:
        request = self.request
        plans = self._start()
        self.writers = [
            TraceWriter(
                request["folder"],
                rank,
                request["digest"],
                capture=capture(request["capture"]),
                budget_bytes=request["budget_bytes"] // self.ranks,
            )
            for rank in range(self.ranks)
        ]
        self.pins = Pins.of(request)
        last = request["through"]
        self.mine = explore({at: through(each, last) for at, each in enumerate(plans)}, self._do, self._fork)
        semantics = self.readings[self.mine[0]]["semantics"]
        for writer in self.writers:
            writer.close({"kind": "reference", "recipe": request["recipe"], "semantics": semantics})
        return {"nan": self.nan, **self._facts()}

    def _do(self, operation: Operation) -> None:
        interpreter.carry_out(operation, self.run_on, self._observe, self.pins)

    def _observe(self, address: Address, value: Any) -> None:
        self.writers[address.rank].put(address, self._shown(address, value))
        if self.nan is None and address.kind in _KEPT and value.is_floating_point() and bool(value.isnan().any()):
            self.nan = address

    def _shown(self, address: Address, value: Any) -> Any:
        """A value as the candidate's rank holds it: its shard, where the candidate deals tensors to ranks."""
        shards = self.request["shards"].get(str(address.rank))
        if not shards or address.kind not in SHARDED_KINDS or value.dim() == 0:
            return value
        name = parameter_of(address)
        if name not in shards:
            return value
        dimension, start, length = shards[name]
        return value.flatten()[start : start + length] if dimension < 0 else value.narrow(dimension, start, length)

    def _fork(self, numbers: list[int]) -> bool:
        """Send readings on in a process of their own; True in that process."""
        if not divisible(self.held, self.ours):
            raise Whole
        folder = Path(self.readings[numbers[0]]["folder"])
        self._part(folder)  # before the fork: this process writes on at once
        lent = self.slots.take()
        state = random.getstate()  # which Python seeds anew in a child
        child = os.fork()
        if child:
            self.mine = [number for number in self.mine if number not in numbers]
            if lent:
                self.children.append(child)
            else:
                os.waitpid(child, 0)
            return False
        random.setstate(state)
        self.mine, self.lent, self.children = numbers, lent, []
        self.ours[0] = folder.resolve()
        for writer in self.writers:
            writer.move(folder)
        self.states[0].workdir = folder / "work"
        self.pins = Pins.of(self.request)  # an open database is not carried across a fork
        return True

    def _part(self, folder: Path) -> None:
        """Leave in another folder what readings that part here go on from."""
        for writer in self.writers:
            writer.part(folder)
        workdir = self.states[0].workdir
        if workdir is not None and workdir.exists():
            shutil.copytree(workdir, folder / "work")

    def _leave(self, outcome: dict[str, Any]) -> None:
        """Write the outcome of what this process carried out: one run, however many readings mean it."""
        first, *same = (self.readings[number] for number in self.mine)
        write_atomically(Path(first["folder"]) / "outcome.json", outcome)
        for reading in same:
            folder = Path(reading["folder"])
            shutil.copytree(first["folder"], folder)
            for manifest in folder.glob("manifest*.json"):
                facts = json.loads(manifest.read_text(encoding="utf-8"))
                write_atomically(manifest, {**facts, "semantics": reading["semantics"]})
        for child in self.children:
            os.waitpid(child, 0)
        if self.lent:
            self.slots.give()


_KEPT = frozenset({"parameter", "buffer", "optimizer_state"})


class Pins(Mapping[Address, Any]):
    """The values that a recorded run had, where some of them are to be taken.

    folder: the run's trace; tensors must have been captured in full.
    places: [moment, kind, first update]...; None takes every place.
    shards: where the run dealt tensors to ranks, as `Replays.shards`: they are put together again.
    """

    def __init__(
        self, folder: str, places: list[list[Any]] | None, shards: Mapping[str, Mapping[str, Sequence[int]]]
    ) -> None:
        from diffs.captured import read_tensors  # needs safetensors, which only runs with pins do
        from diffs.trace import open_trace

        self.trace = open_trace(folder)
        self.left = left_to_others(self.trace)
        self.tensors: Mapping[Any, Any] = read_tensors(folder)
        self.shards = shards
        self.places = None if places is None else {(moment, kind): update for moment, kind, update in places}

    @classmethod
    def of(cls, request: dict[str, Any]) -> Mapping[Address, Any]:
        """The pins that a request asks for, none by default."""
        asked = request["pins"]
        return cls(asked["trace"], asked["places"], request["shards"]) if asked else {}

    def __contains__(self, asked: object) -> bool:
        address: Address = asked  # type: ignore[assignment]
        if self.places is not None:
            first = self.places.get((address.moment, address.kind))
            if first is None or address.update < first:
                return False
        return self._there(address) in self.tensors or self._scalar(address) is not None

    def __getitem__(self, address: Address) -> Any:
        address = self._there(address)
        if address not in self.tensors:
            return self._scalar(address)
        held = {rank: self.shards.get(str(rank), {}).get(parameter_of(address)) for rank in self.trace.processes}
        dealt = {rank: part for rank, part in held.items() if part is not None}
        if not dealt or address.kind not in SHARDED_KINDS or self.tensors[address].dim() == 0:
            return self.tensors[address]
        if whole := held.keys() - dealt.keys():  # a rank whose shard is all there is
            return self.tensors[address._replace(rank=min(whole))]
        order = sorted((rank for rank, (_, _, length) in dealt.items() if length), key=lambda rank: dealt[rank][1])
        parts = [self.tensors[address._replace(rank=rank)] for rank in order]
        return torch.cat(parts, dim=max(dealt[address.rank][0], 0))

    def _there(self, address: Address) -> Address:
        """The address on a rank that has it, where its own leaves the parameter to others."""
        if not self.left or (address.rank, parameter_of(address)) not in self.left or address in self.tensors:
            return address
        others = (address._replace(rank=rank) for rank in self.trace.processes)
        return next((other for other in others if other in self.tensors), address)

    def _scalar(self, address: Address) -> Any:
        row = self.trace.row(address)
        return None if row is None else row.content

    def __iter__(self) -> Iterator[Address]:
        yield from self.tensors

    def __len__(self) -> int:
        return len(self.tensors)
