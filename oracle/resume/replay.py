"""The reference interrupted and resumed, with parts of its state left out: on request, in a fork of the server.

Runs in the candidate's own environment: only the standard library and torch, except that what is taken from a recorded
run is read with safetensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from oracle.recorder.trace import TraceWriter
from oracle.tasks import load_task
from oracle.worker import capture, described, write_atomically
from reference_loop import checkpoint, interpreter, randomness
from reference_loop.loader import count_samples
from reference_loop.moments import Address
from reference_loop.operations import Backward, Cursor, End, Fetch, Forward, NextRate, Restore, TrainMode
from reference_loop.plan import batches_per_epoch, plan
from reference_loop.recipe import Recipe, from_dict
from reference_loop.semantics import Semantics
from reference_loop.state import State


def carry_out(request: dict[str, Any], told: Any) -> None:
    """Carry out one request of `oracle.resume.parts.Resumes`; leaves a trace and outcome.json in its folder.

    told: what an exception says to a user, (exception, task file) -> str.
    """
    outcome: dict[str, Any] = {"error": None}
    try:
        Resumed(request).run()
    except Exception as error:
        outcome["error"] = {**described(error), "message": told(error, request["task"])}
    write_atomically(Path(request["folder"]) / "outcome.json", outcome)


class Resumed:
    """One reference run from a checkpoint.

    request: `point`, [updates, micro], says where the run was interrupted. `checkpoint` is a folder that holds what was
    saved there; where it holds nothing, the reference is trained to that point first. `ways` has the parts that are not
    restored, each with the way in which, as `oracle.resume.parts.Hypothesis` lists them.

    `values` are what the resumed run has of a part: `parameter`: the folder of its trace; `cursor`: how many batches
    further on; `order`: the samples' ids from there on; `scheduler`: the learning rates of its first update; `scaler`:
    its state. `rates` are those learning rates, too. `generators` is the folder of its trace.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.recipe: Recipe = from_dict(request["recipe"])
        self.semantics = Semantics.from_flat(request["semantics"])
        self.ways: dict[str, str] = request["ways"]
        self.missing = {part for part, way in self.ways.items() if way in ("missing", "rate")}
        self.taken = {part: request["values"][part] for part, way in self.ways.items() if way in ("taken", "inside")}
        self.updates, self.micro = request["point"]
        self.folder = Path(request["checkpoint"])

    def run(self) -> None:
        """Train from the checkpoint to the end."""
        if not (self.folder / checkpoint.FILE).exists():
            self._save()
        saved = checkpoint.load(self.folder)
        state = self._state(self.folder)
        before = saved["counter"]["micros"]
        epoch, index = saved["cursor"]
        at = Cursor(self.updates, epoch, index, self.micro)
        if "cursor" in self.taken:
            at = self._moved(at, self.taken["cursor"], state)
        inside = at.index > 0 or at.epoch == epoch
        semantics = self.semantics.with_("resume.missing", ",".join(sorted(self.missing)))
        uncounted = "counter" in self.missing  # then the run counts from 0 again
        shift = {"updates": self.updates, "batches": before} if uncounted else {"updates": 0, "batches": 0}
        writer = TraceWriter(
            self.request["folder"],
            digest=self.request["digest"],
            capture=capture(self.request["capture"]),
            budget_bytes=self.request["budget_bytes"],
        )
        base = self.updates - 1
        skipped = at.micro - self.micro if self.ways.get("cursor") == "inside" else 0

        def observe(address: Address, value: Any) -> None:
            if address.moment == "start":
                if address.kind != "hyperparameter":
                    return
                address = address._replace(update=base)
            else:
                inside = skipped if address.micro >= 0 and address.update == at.updates else 0
                address = address._replace(update=address.update + shift["updates"], micro=address.micro - inside)
            if address.kind == "count":
                value += shift[address.name]
            writer.put(address, value)

        entered = False
        for operation in plan(self.recipe, semantics, count_samples(state.loader.data), at):
            if not entered and isinstance(operation, Fetch):
                self._generators("entry.safetensors")
            if not entered and isinstance(operation, Forward):
                entered = True
                if inside and "cursor" in self.taken and "rng" not in self.ways:
                    randomness.restore(saved["rng"])  # after the batches before it were skipped
                self._generators(None)
                for name, value in randomness.states().items():
                    writer.put(Address(base, -1, "start", "rng", name), value)
            interpreter.carry_out(operation, state, observe, {})
            if isinstance(operation, Restore):
                self._take(state, operation)
                for address, value in _begun(state, base):
                    writer.put(address, value)
            if isinstance(operation, NextRate):
                writer.commit()
        writer.close({"kind": "resumption", "recipe": self.request["recipe"]})

    def _state(self, resume_from: Path | None = None) -> State:
        randomness.seed(self.recipe.seed)
        return State(
            load_task(self.request["task"]),
            self.recipe,
            drop_last=self.semantics.data.tail == "drop",
            workdir=Path(self.request["folder"]) / "work",
            resume_from=resume_from,
            device=self.request["device"],
            overrides=self.request["overrides"],
        )

    def _save(self) -> None:
        """Train to the point of the interruption, and save there."""
        state = self._state()
        there = self.updates == self.micro == 0
        for operation in plan(self.recipe, self.semantics, count_samples(state.loader.data)):
            if there and isinstance(operation, (TrainMode, Fetch, Forward, End)):  # the next micro-batch begins
                break
            interpreter.carry_out(operation, state, lambda address, value: None, {})
            if self.micro:
                there |= (
                    isinstance(operation, Backward)
                    and operation.update == self.updates
                    and (operation.micro == self.micro - 1)
                )
            else:
                there |= isinstance(operation, NextRate) and operation.update == self.updates - 1
        checkpoint.save(state, self.folder, self.updates - 1)

    def _moved(self, at: Cursor, further: int, state: State) -> Cursor:
        """A place as many batches further on."""
        count = batches_per_epoch(self.recipe, self.semantics, count_samples(state.loader.data))
        epoch, index = divmod(at.epoch * count + at.index + further, count)
        inside = index % self.recipe.accumulation if self.ways["cursor"] == "inside" else at.micro
        return Cursor(at.updates, epoch, index, inside)

    def _take(self, state: State, restore: Restore) -> None:
        """Put what is taken from elsewhere in the place of what was restored."""
        with torch.no_grad():
            held: dict[str, torch.Tensor] = {**state.buffers, **{name: p.data for name, p in state.parameters.items()}}
            if "parameter" in self.taken:
                for name, value in self._tensors("start", ("parameter", "buffer"), -1).items():
                    held[name].copy_(value)
        if "scaler" in self.taken and state.scaler is not None:
            for name, value in self.taken["scaler"].items():
                state.scaler.state[name].copy_(torch.as_tensor(value))
        if "scheduler" in self.taken:
            _find_rate(state, self.taken["scheduler"])
        if "rate" in self.ways.values():
            state.lr = {name: rate for name, rate in self.request["rates"].items() if name in state.lr}
        if "order" in self.taken:
            self._reorder(state, restore, self._order(state, restore.at.index))
        elif "cursor" in self.taken and "order" not in self.ways:
            saved = checkpoint.load(self.folder)
            same = saved["cursor"][0] == restore.at.epoch
            self._reorder(state, restore, saved["order"]["epoch"] if same else None)

    def _reorder(self, state: State, restore: Restore, known: list[int] | None) -> None:
        """Go through the epoch in a known order; None: in the one that it draws."""
        at, loader = restore.at, state.loader
        draw = loader.draw
        if at.index > 0:
            kept = randomness.snapshot()
            loader.start(at.epoch, restore.order, restore.draws, at.index, known)
            randomness.restore(kept)
            return

        def drawn(epoch: int, order: str) -> list[int]:
            usual = draw(epoch, order)  # it moves the generators, whatever comes of it
            return known if known is not None and epoch == at.epoch else usual

        loader.draw = drawn  # type: ignore[method-assign]

    def _order(self, state: State, index: int) -> list[int]:
        """Sample indices of an epoch: from a batch on they are known by their ids, those before do not matter."""
        kept = randomness.snapshot()
        places = {_identity(state.loader.data[at]["id"]): at for at in range(len(state.loader.data))}
        randomness.restore(kept)
        known = [places[identity] for identity in self.taken["order"]]
        return ([0] * (index * self.recipe.batch_size) + known)[: len(state.loader.data)]

    def _generators(self, file: str | None) -> None:
        """Take the resumed run's generators, if they are taken: as a file has them, else as at its first forward."""
        if "rng" not in self.taken:
            return
        from safetensors.torch import load_file

        folder = Path(self.request["generators"])
        if file is None:
            _set_generators(self._tensors("forward", ("rng",), 0))
        elif (folder / file).exists():
            _set_generators(load_file(folder / file))

    def _tensors(self, moment: str, kinds: tuple[str, ...], micro: int) -> dict[str, torch.Tensor]:
        """What the resumed run's trace holds in full of its first micro-batch or its start, by name."""
        from diffs.captured import read_tensors

        found = read_tensors(self.request["generators"])
        chosen = [a for a in found if a.moment == moment and a.kind in kinds and a.micro == micro and a.update <= 0]
        return {address.name: found[address] for address in chosen}


def _begun(state: State, base: int) -> Any:
    for name, parameter in state.parameters.items():
        yield Address(base, -1, "start", "parameter", name), parameter.detach()
    for name, buffer in state.buffers.items():
        yield Address(base, -1, "start", "buffer", name), buffer
    for name, value in (state.scaler.state if state.scaler else {}).items():
        yield Address(base, -1, "start", "scaler", name), value


def _identity(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _find_rate(state: State, rates: Mapping[str, float]) -> None:
    """Move the schedule to the nearest position that gives these learning rates; leave it where none does."""
    found = state.position
    last = int(4 * (state.schedule.total * state.schedule.parts + 1))
    for position in sorted(range(last), key=lambda position: abs(position - found)):
        state.position = position
        state.set_rate()
        if state.lr == dict(rates):
            return
    state.position = found
    state.set_rate()


def _set_generators(states: Mapping[str, torch.Tensor]) -> None:
    """Put generators into states as a trace holds them: see `reference_loop.randomness.states`."""
    saved = randomness.snapshot()
    if "torch" in states:
        saved["torch"] = states["torch"]
    if "python" in states:
        *words, version, gauss = states["python"].tolist()
        if gauss == 0:  # otherwise only its hash is known
            saved["python"] = [version, words, None]
    if "numpy" in states and "numpy" in saved:
        *words, position, has_gauss, _ = states["numpy"].tolist()
        if not has_gauss:
            saved["numpy"] = [saved["numpy"][0], words, position, 0, 0.0]
    randomness.restore(saved)
