"""The noise floor, measured: is a difference no larger than float rounding makes it, judged one update at a time?

Every update starts from the state that the candidate had. From there the reference computes the update twice: in the
recipe's precision, and in float64, which stands for the truth. The candidate's error against the truth may be a small
multiple of the reference's own. Then the candidate's values are pinned and the next update is judged, so that errors
never pile up and a real mistake cannot hide behind old rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from diffs.bits import identical
from reference_loop import randomness
from reference_loop.moments import Address
from reference_loop.operations import Evaluate, Fetch, Operation, Start
from reference_loop.state import State

# Calibrated in tests/oracle/test_floor.py: healthy arithmetic stays below, a systematic error of 0.1 % is far above.
MULTIPLE = 4.0
EPSILONS = 4.0
# A reference that is itself this far from float64 says that the two did not compute the same thing.
HOPELESS = 0.1

JUDGED = frozenset({
    ("consume", "gradient"), ("consume", "learning_rate"), ("schedule", "learning_rate"),
    ("update", "parameter"), ("update", "buffer"), ("update", "optimizer_state"),
})  # fmt: skip


def judge(
    operations: Iterable[Operation], state: State, candidate: Mapping[Address, Any], *, through: int | None = None
) -> list[dict[str, Any]]:
    """Every judged value that differs from the candidate's, each with its error and what the floor allows.

    candidate: the candidate's values in full.
    through: the last update to judge.
    Returns, in causal order, dicts of `address`, `error` and `allowance` (2-norms over the tensor; a rate's absolute
    value) and `within`, which is written in the positive, so that NaN is beyond.
    """
    found: list[dict[str, Any]] = []
    truth: State | None = None
    truths: dict[Address, torch.Tensor] = {}
    update = None
    for operation in operations:
        now = getattr(operation, "update", update)
        if through is not None and now is not None and now > through:
            break
        if now != update and not isinstance(operation, Start):
            update, truth, truths = now, in_float64(state), {}
        generators = randomness.snapshot()
        if truth is not None and not isinstance(operation, Fetch | Evaluate):  # metrics read data in its own precision
            for address, value in operation.do(truth):
                if address[2:4] in JUDGED and isinstance(value, torch.Tensor):
                    truths[address] = value.detach().clone()
                    if address in candidate:
                        truth.put(address, candidate[address].double())
            randomness.restore(generators)
        overflow, pairs = state.found_inf, []
        for address, value in operation.do(state):
            if address in candidate and (address[2:4] in JUDGED or address.kind in ("parameter", "buffer")):
                other = candidate[address]
                pairs.append((address, value.clone() if isinstance(value, torch.Tensor) else value, other))
                state.put(address, other)
        whole = _whole([(value, truths.get(address)) for address, value, _ in pairs if address.kind == "gradient"])
        for address, value, other in pairs:
            if overflow and address.kind == "gradient" and not bool(other.isfinite().all()):
                verdict = _nobody_takes(address, value, other)
            else:
                verdict = _compare(address, value, other, truths.get(address), whole)
            if verdict is not None:
                found.append(verdict)
        if isinstance(operation, Fetch) and truth is not None:
            _share(state, truth)
        if truth is not None:
            truth.found_inf, truth.skipped = state.found_inf, state.skipped
    return found


def in_float64(state: State) -> State:
    """A copy of a run's state that computes in float64, from the same numbers."""
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


def _nobody_takes(address: Address, reference: torch.Tensor, candidate: torch.Tensor) -> dict[str, Any] | None:
    """The verdict on a gradient that overflowed in an update that is skipped: its infinities and NaN decide nothing."""
    same = identical(reference, candidate)
    return None if same else {"address": address, "error": None, "allowance": None, "within": True}


def _whole(gradients: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> tuple[float, float]:
    """The reference's error and the size of the truth over all gradients of an update together."""
    told = [(value, truth) for value, truth in gradients if truth is not None]
    return (
        math.hypot(*(_norm(value.double() - truth) for value, truth in told)),
        math.hypot(*(_norm(truth) for _, truth in told)),
    )


def _compare(
    address: Address, reference: Any, candidate: Any, truth: torch.Tensor | None, whole: tuple[float, float]
) -> dict[str, Any] | None:
    """The verdict on one value; None where the two are the same.

    whole: `_whole` of the gradients that it is one of. A gradient may be nothing but rounding, as that of a bias before
    a batch norm is: there the error over all gradients is what rounding can do.
    """
    if not isinstance(reference, torch.Tensor):
        if reference == candidate:
            return None
        error, allowance = abs(candidate - reference), EPSILONS * torch.finfo(torch.float64).eps * abs(reference)
    else:
        if identical(reference, candidate):
            return None
        if truth is None or reference.shape != candidate.shape or not reference.is_floating_point():
            return {"address": address, "error": None, "allowance": None, "within": False}
        own = _norm(reference.double() - truth)
        error = _norm(candidate.double() - truth)
        size = _norm(truth)
        step = EPSILONS * torch.finfo(reference.dtype).eps
        allowance = max(MULTIPLE * own, step * size)
        if _norm(candidate.double() - reference.double()) <= step * _norm(reference.double()):
            return {"address": address, "error": error, "allowance": allowance, "within": True}
        if not own <= HOPELESS * size:
            if not (address.kind == "gradient" and 0 < whole[0] <= HOPELESS * whole[1]):
                return {"address": address, "error": None, "allowance": None, "within": False}
            allowance = max(allowance, MULTIPLE * whole[0])
    return {"address": address, "error": error, "allowance": allowance, "within": bool(error <= allowance)}


def _norm(value: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(value))
