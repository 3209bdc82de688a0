"""What the numbers at an unexplained difference say by themselves: clues for a person, never a cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from diffs.address import Address
from oracle.explain.evidence import constant_ratio

CLOSE = 1e-4  # relative spread of a fitted number over all elements; float32 rounding is far below
MOST_NAMES = 4
Tensors = Mapping[Address, torch.Tensor]


@dataclass(frozen=True)
class Update:
    """One update of both sides, tensor by tensor; `ours` is the reference's."""

    number: int
    ours: Tensors
    theirs: Tensors

    def pairs(self, moment: str, kind: str, update: int | None = None) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Both sides' tensors of a place, by name; of `number` where no update is given."""
        at = self.number if update is None else update
        found = {}
        for address in self.theirs:
            if address[2:4] == (moment, kind) and address.update == at and address in self.ours:
                left, right = self.ours[address].double(), self.theirs[address].double()
                if left.shape == right.shape:
                    found[address.name] = (left, right)
        return found

    def before(self, kind: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Both sides' tensors as this update found them."""
        return self.pairs("start", kind, -1) if self.number == 0 else self.pairs("update", kind, self.number - 1)


def clues(at: Address, update: Update) -> Iterator[str]:
    """Sentences on the difference at an address; none where the numbers say nothing simple."""
    if at.moment == "consume" and at.kind == "gradient":
        yield from _gradients(update)
    elif at.moment == "update" and at.kind in ("parameter", "optimizer_state"):
        yield from _moved(update)
        yield from _steps(update)
        yield from _moments(update)


def _gradients(update: Update) -> Iterator[str]:
    pairs = update.pairs("consume", "gradient")
    unlike = {name: pair for name, pair in pairs.items() if not torch.equal(*pair)}
    if not unlike:
        return
    if len(unlike) < len(pairs):
        yield f"{len(unlike)} of {len(pairs)} gradients differ: {_names(unlike)}"
    gone = [name for name, (ours, theirs) in unlike.items() if not theirs.any() and ours.any()]
    if gone:
        yield f"the candidate's gradient is zero: {_names(gone)}"
    ratios = {constant_ratio(*pair) for pair in unlike.values()}
    if len(ratios) == 1 and None not in ratios:
        yield f"candidate / reference is {ratios.pop()} in every element, exactly"
        return
    quotients = {name: (theirs / ours)[(ours != 0) | (theirs != 0)] for name, (ours, theirs) in unlike.items()}
    fitted = _one_number(list(quotients.values()))
    each = {name: _one_number([values]) for name, values in quotients.items() if len(values) > 1}
    if fitted:
        yield f"candidate / reference is {fitted:.6g} in every element, but for rounding"
    elif len(each) > 1 and all(each.values()):
        shown = ", ".join(f"{name} {ratio:.4g}" for name, ratio in sorted(each.items())[:MOST_NAMES])
        yield f"candidate / reference is a number of its own for each gradient, but for rounding: {shown}"


def _moved(update: Update) -> Iterator[str]:
    gradients = update.pairs("consume", "gradient")
    after, before = update.pairs("update", "parameter"), update.before("parameter")
    named = after.keys() & before.keys() & gradients.keys()
    moves = [{name for name in named if not torch.equal(after[name][side], before[name][side])} for side in (0, 1)]
    pushed = {name for name in named if gradients[name][1].any()}
    if moves[1] - moves[0] - pushed:
        yield f"the candidate moves what has no gradient: {_names(moves[1] - moves[0] - pushed)}"
    if moves[0] - moves[1]:
        yield f"the candidate does not move: {_names(moves[0] - moves[1])}"


def _steps(update: Update) -> Iterator[str]:
    after, before = update.pairs("update", "parameter"), update.before("parameter")
    ratios = []
    for name in after.keys() & before.keys():
        ours, theirs = (after[name][side] - before[name][side] for side in (0, 1))
        if not torch.equal(*before[name]):
            return
        told = ours.abs() > 1e-3 * before[name][0].abs()  # smaller steps are lost in the parameter's own rounding
        if told.any():
            ratios.append(theirs[told] / ours[told])
    fitted = _one_number(ratios, close=1e-2)
    if fitted is not None and abs(fitted - 1) > 1e-2 and fitted:
        yield f"the candidate's step is {fitted:.3g} times the reference's, in every element"


def _moments(update: Update) -> Iterator[str]:
    """The betas and the momentum that the candidate's own moments follow from its own gradients."""
    gradients, after = update.pairs("consume", "gradient"), update.pairs("update", "optimizer_state")
    earlier = update.before("optimizer_state")
    for key, square, argument in (("exp_avg", False, "beta1"), ("exp_avg_sq", True, "beta2")):
        fits: dict[int, list[torch.Tensor]] = {0: [], 1: []}
        for name, (_, gradient) in gradients.items():
            state = f"{name}.{key}"
            if state not in after:
                continue
            fed = gradient**2 if square else gradient
            for side in (0, 1):
                old = earlier[state][side] if state in earlier else torch.zeros_like(fed)
                told = (old - fed).abs() > 1e-3 * fed.abs().max()
                fits[side].append(((after[state][side] - fed) / (old - fed))[told])
        ours, theirs = (_one_number(fits[side], close=1e-3) for side in (0, 1))
        if ours is not None and theirs is not None and abs(ours - theirs) > 1e-3 * abs(ours):
            yield f"the candidate's {key} follows with {argument} = {theirs:.4g}, the reference's with {ours:.4g}"


def _one_number(values: list[torch.Tensor], close: float = CLOSE) -> float | None:
    """The number that all values are, but for rounding; None if they are not one, or there is none."""
    if not values:
        return None
    every = torch.cat([value.flatten() for value in values])
    if not len(every) or not bool(every.isfinite().all()):
        return None
    middle = float(every.median())
    spread = float((every - middle).abs().max())
    return middle if spread <= close * abs(middle) else None


def _names(names: Iterable[str]) -> str:
    every = sorted(names)
    shown = ", ".join(every[:MOST_NAMES])
    return shown if len(every) <= MOST_NAMES else f"{shown} and {len(every) - MOST_NAMES} more"
