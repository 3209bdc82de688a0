"""The noise floor, measured: is a difference no larger than float rounding makes it, judged one update at a time?

Every update starts from the state that the candidate had. From there the reference computes the update twice: in the
recipe's precision, and in float64, which stands for the truth. The candidate's error against the truth may be a small
multiple of the reference's own. Then the candidate's values are pinned and the next update is judged, so that errors
never pile up and a real mistake cannot hide behind old rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from diffs.bits import identical
from reference_loop import randomness
from reference_loop.moments import SHARDED_KINDS, Address
from reference_loop.operations import Evaluate, Fetch, Operation, Start
from reference_loop.state import State
from reference_loop.world import OnRank, World

# Calibrated by `python -m benchmarks.floor`; docs/noise.md has the figures.
MULTIPLE = 12.0
EPSILONS, SPREAD = 4.0, 2.0  # units in the last place, of the tensor itself and of its whole place
# A reference that is itself this far from float64, all in all, says that the two did not compute the same thing.
HOPELESS = 0.1
# But under autocast to a short type its gradients may be that far from it for rounding alone, up to COARSE: the
# candidate may then be a FEW times as far from the reference as that is from float64, never as far as MOST of its size.
COARSE, FEW, MOST = 0.5, 3.0, 0.7

JUDGED = frozenset({
    ("consume", "gradient"), ("consume", "learning_rate"), ("schedule", "learning_rate"),
    ("update", "parameter"), ("update", "buffer"), ("update", "optimizer_state"),
})  # fmt: skip


@dataclass
class Measured:
    """One value against float64: 2-norms over a tensor, absolute values of a rate.

    own, error: how far the reference and the candidate are from the truth. apart: from each other. size: of the truth.
    differs: whether the candidate's value is another one than the reference's; comparable: whether both were measured.
    settled: within the floor whatever the truth is, being a few units in the last place apart or taken by nobody.
    """

    address: Address
    own: float
    error: float
    apart: float
    size: float
    epsilon: float
    differs: bool
    comparable: bool = True
    settled: bool = False


def judge(
    operations: Iterable[Operation],
    state: State | World,
    candidate: Mapping[Address, Any],
    *,
    through: int | None = None,
) -> list[dict[str, Any]]:
    """Every judged value that differs from the candidate's, each with its error and what the floor allows.

    state: that training begins with; a World for the interleaved operations of several ranks.
    candidate: the candidate's values in full.
    through: the last update to judge.
    Returns, in causal order, dicts of `address`, `error` and `allowance` (2-norms over the tensor; a rate's absolute
    value) and `within`, which is written in the positive, so that NaN is beyond.
    """
    measured = list(_measure(operations, state, candidate, through))
    places: dict[tuple[Any, ...], list[Measured]] = {}
    for value in measured:
        places.setdefault(_place(value.address), []).append(value)
    found = []
    for value in measured:
        if value.differs:
            place = places[_place(value.address)]
            error, allowance = _allowance(value, place, short=members(state)[0].dtype != torch.float32)
            within = value.settled or (error is not None and allowance is not None and error <= allowance)
            found.append({"address": value.address, "error": error, "allowance": allowance, "within": within})
    return found


def _place(address: Address) -> tuple[Any, ...]:
    return address.rank, address.update, address.moment, address.kind


def _allowance(value: Measured, place: list[Measured], *, short: bool) -> tuple[float | None, float | None]:
    """How far the candidate is from the truth, and how far it may be; None where nothing can be said.

    It is a multiple of the reference's own error, of this value or as a share of all values of its place, and some
    units in the last place. What is left where terms cancel is noise on both sides: there the units are the place's.
    """
    own, size = (math.hypot(*(getattr(other, name) for other in place)) for name in ("own", "size"))
    if not value.comparable or not own <= (COARSE if short else HOPELESS) * size:
        return None, None
    if own > HOPELESS * size:
        share = min(FEW * own / size, MOST)
        return value.apart, max(min(FEW * value.own, MOST * value.size), share * value.size)
    shares = (MULTIPLE * value.own, MULTIPLE * own / (size or 1.0) * value.size, EPSILONS * value.epsilon * value.size)
    return value.error, max(*shares, SPREAD * value.epsilon * size)


def _measure(
    operations: Iterable[Operation], state: State | World, candidate: Mapping[Address, Any], through: int | None
) -> Iterator[Measured]:
    """Every judged value of a run that starts each update from the candidate's state."""
    truth: State | World | None = None
    truths: dict[Address, torch.Tensor] = {}
    update = None
    for operation in operations:
        now = getattr(operation, "update", update)
        if through is not None and now is not None and now > through:
            break
        kind = type(operation.operation if isinstance(operation, OnRank) else operation)
        if now != update and kind is not Start:
            update, truth, truths = now, in_float64(state), {}
        generators = randomness.snapshot()
        if isinstance(truth, World) and isinstance(state, World):
            truth.generators = list(state.generators)
        if truth is not None and kind not in (Fetch, Evaluate):  # metrics read data in its own precision
            for address, value in operation.do(truth):  # type: ignore[arg-type]
                if address[2:4] in JUDGED and isinstance(value, torch.Tensor):
                    truths[address] = value.detach().clone()
                    if address in candidate:
                        truth.put(address, candidate[address].double())
            randomness.restore(generators)
        overflow = members(state)[0].found_inf  # of one rank, it is found after they were reduced
        for address, value in operation.do(state):  # type: ignore[arg-type]
            if address in candidate and (address[2:4] in JUDGED or address.kind in ("parameter", "buffer")):
                other = candidate[address]
                flat = address.kind in SHARDED_KINDS and other.dim() == 1  # as put together from flat shards
                if flat and other.numel() == value.numel():
                    other = other.reshape(value.shape)
                found = _compare(address, value, other, truths.get(address))
                found.settled |= overflow and address.kind == "gradient" and not bool(other.isfinite().all())
                yield found
                state.put(address, other)
        if truth is not None:
            for ours, twin in zip(members(state), members(truth), strict=True):
                if kind is Fetch:
                    _share(ours, twin)
                twin.found_inf, twin.skipped = ours.found_inf, ours.skipped


def members(state: State | World) -> list[State]:
    """The states of all ranks."""
    return state.states if isinstance(state, World) else [state]


def in_float64(state: State | World) -> State | World:
    """A copy of a run's state that computes in float64, from the same numbers."""
    return World(list(map(_twin, state.states))) if isinstance(state, World) else _twin(state)


def _twin(state: State) -> State:
    model = copy.deepcopy(state.model).double()
    twin = copy.copy(state)
    twin.model = model
    twin.dtype = torch.float32
    twin.parameters = dict(model.named_parameters())
    for name, gradient in state.gradients().items():
        twin.parameters[name].grad = gradient.double()
    twin.optimizer_state = {
        name: {key: value.double() if value.ndim else value.clone() for key, value in kept.items()}
        for name, kept in state.optimizer_state.items()
    }
    twin.scaler = copy.deepcopy(state.scaler)
    twin.ema = {name: value.double() for name, value in state.ema.items()}
    twin.batches, twin.units, twin.losses = {}, state.units, []
    twin.workdir = None
    _share(state, twin)
    return twin


def _share(state: State, twin: State) -> None:
    for key, batch in state.batches.items():
        twin.batches[key] = {
            name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for name, value in batch.items()
        }


def _compare(address: Address, reference: Any, candidate: Any, truth: torch.Tensor | None) -> Measured:
    if not isinstance(reference, torch.Tensor):
        epsilon = torch.finfo(torch.float32).eps  # a rate may be kept in a tensor
        apart = abs(candidate - reference)
        return Measured(address, 0.0, apart, apart, abs(reference), epsilon, reference != candidate)
    differs = not identical(reference, candidate)
    if truth is None or reference.shape != candidate.shape or not reference.is_floating_point():
        return Measured(address, 0.0, 0.0, 0.0, 0.0, 0.0, differs, comparable=False)
    epsilon = torch.finfo(reference.dtype).eps
    apart = _norm(candidate.double() - reference.double())
    return Measured(
        address,
        own=_norm(reference.double() - truth),
        error=_norm(candidate.double() - truth),
        apart=apart,
        size=_norm(truth),
        epsilon=epsilon,
        differs=differs,
        settled=apart <= EPSILONS * epsilon * _norm(reference.double()) < math.inf,
    )


def _norm(value: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(value))
