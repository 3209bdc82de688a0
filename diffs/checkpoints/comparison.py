"""Compares two checkpoints, part by part: tensors where they lie, plain state by deepdiff."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from diffs.bits import name_of
from diffs.checkpoints import pairing, windows
from diffs.checkpoints.checkpoint import PARTS, Checkpoint, Part
from diffs.checkpoints.stored import Stored
from diffs.tensor import TensorDifference
from diffs.tree import StateDifference
from diffs.verdict import Verdict

Form = tuple[str, tuple[int, ...]]

Outcome = Literal["differs", "dtype", "shape", "missing", "added", "renamed", "tied"]


@dataclass(frozen=True, kw_only=True)
class TensorOutcome:
    """What became of one tensor that is not simply identical.

    name: in the reference, or in the candidate where it alone has the tensor.
    outcome: "differs", "dtype" or "shape" (it has another), "missing" (the candidate lacks it), "added" (the reference
        lacks it), "renamed" (the content has another name) or "tied" (one side has it once, under another name).
    other: its name in the candidate, or the name that it is tied to; None if that is `name`.
    reference, candidate: (dtype, shape) on either side; None where it is lacking, or tied.
    difference: what comparing the elements found; None if they were not compared.
    """

    name: str
    outcome: Outcome
    other: str | None = None
    reference: Form | None = None
    candidate: Form | None = None
    difference: TensorDifference | None = None

    @property
    def decisive(self) -> bool:
        """Whether the two checkpoints differ by it: a tied tensor is stored once and loaded twice."""
        return self.outcome != "tied"


@dataclass(frozen=True, kw_only=True)
class PartComparison:
    """What comparing one part found.

    part: its name. sides: "both", "reference" or "candidate": which have it.
    compared: whether it was; a part that the other format has no place for is not.
    tensors: how many were paired. nbytes: how many bytes of the reference they have. identical: how many of them are.
    outcomes: the others. state: differences in plain state. values: whether both sides have an entry of it.
    ignored: entries of plain state that one format alone has.
    rule: the rule for prefixes by which names were paired. named_alike: whether names should agree without it.
    by_content: whether tensors were paired by content alone, because one side numbers the parameters.
    """

    part: str
    sides: str
    compared: bool
    tensors: int = 0
    nbytes: int = 0
    identical: int = 0
    outcomes: tuple[TensorOutcome, ...] = ()
    state: tuple[StateDifference, ...] = ()
    values: bool = False
    ignored: int = 0
    rule: pairing.Rule | None = None
    named_alike: bool = True
    by_content: bool = False

    @property
    def same(self) -> bool:
        """Whether nothing in it makes the two differ."""
        return not (
            (self.compared and self.sides != "both")
            or any(outcome.decisive for outcome in self.outcomes)
            or self.state
            or (self.rule is not None and self.named_alike)
        )

    @property
    def met(self) -> bool:
        """Whether anything of one side was held against something of the other."""
        return bool(self.tensors or self.values or any(one.reference and one.candidate for one in self.outcomes))


@dataclass(frozen=True, kw_only=True)
class CheckpointComparison:
    """What comparing two checkpoints found.

    reference, candidate: the two. parts: in the order of `PARTS`, those that either has.
    """

    reference: Checkpoint
    candidate: Checkpoint
    parts: tuple[PartComparison, ...]

    @property
    def tensors(self) -> int:
        """How many tensors were compared."""
        return sum(part.tensors for part in self.parts)

    @property
    def nbytes(self) -> int:
        """How many bytes of the reference's tensors were compared."""
        return sum(part.nbytes for part in self.parts)

    @property
    def reason(self) -> str | None:
        """Why nothing was decided, or None."""
        if any(part.met for part in self.parts):
            return None
        return "the two have nothing in common that could be compared"

    @property
    def verdict(self) -> Verdict:
        """`match`, `diverged`, or `not_comparable` where nothing was compared."""
        if self.reason is not None:
            return "not_comparable"
        return "match" if all(part.same for part in self.parts) else "diverged"

    @property
    def worst_ulp(self) -> int | None:
        """The largest distance of two elements; None if something differs that has none."""
        worst = 0
        for part in self.parts:
            if part.same:
                continue
            if part.state or part.sides != "both" or (part.rule is not None and part.named_alike):
                return None
            for outcome in part.outcomes:
                if outcome.decisive and (outcome.difference is None or outcome.difference.worst is None):
                    return None
                if outcome.difference is not None and outcome.difference.worst is not None:
                    worst = max(worst, outcome.difference.worst.ulp)
        return worst


def compare(reference: Checkpoint, candidate: Checkpoint) -> CheckpointComparison:
    """Compare two checkpoints.

    Of one format, every part decides. Of two, those that both checkpoints have, and of plain state the entries that
    both have; arguments, and what fits nowhere, mean another thing in each format and are not compared.

    Raises:
        NotComparable: a file breaks while it is read, or a tensor has no plain memory.
    """
    same_format = reference.format == candidate.format
    common = frozenset(PARTS) if same_format else frozenset(PARTS) - {"arguments", "other"}
    drafts: list[tuple[PartComparison, list[tuple[str, str]]]] = []
    pairs: list[tuple[Stored, Stored]] = []
    for name in PARTS:
        left, right = reference.parts.get(name), candidate.parts.get(name)
        if left is not None and right is not None and name in common:
            draft, waiting = _matched(name, left, right, same_format)
            pairs += [(left.tensors[one], right.tensors[other]) for one, other in waiting]
            drafts.append((draft, waiting))
        elif left is not None or right is not None:
            sides = "both" if left and right else "reference" if left else "candidate"
            drafts.append((PartComparison(part=name, sides=sides, compared=same_format), []))
    # All at once, because what lies side by side in a file is compared as one, whichever part it belongs to.
    found = iter(windows.compare(pairs))
    parts = tuple(_measured(draft, waiting, list(islice(found, len(waiting)))) for draft, waiting in drafts)
    return CheckpointComparison(reference=reference, candidate=candidate, parts=parts)


def _matched(name: str, left: Part, right: Part, same_format: bool) -> tuple[PartComparison, list[tuple[str, str]]]:
    """A part's comparison without the elements, and the names of the tensors whose elements are to be compared."""
    draft = PartComparison(part=name, sides="both", compared=True, named_alike=same_format)
    if left.by_index != right.by_index and left.tensors and right.tensors:
        return _matched_by_content(_with_state(draft, left, right, False), left, right), []
    paired = pairing.pair(left.tensors, right.tensors)
    draft = _with_state(draft, left, right, paired.rule is None)
    outcomes: list[TensorOutcome] = []
    waiting: list[tuple[str, str]] = []
    for one, other in paired.same:
        if _form(left.tensors[one]) == _form(right.tensors[other]):
            waiting.append((one, other))
        else:
            outcomes.append(_changed(one, other, left.tensors[one], right.tensors[other]))
    for one, other in paired.renamed:
        form = _form(left.tensors[one])
        outcomes.append(TensorOutcome(name=one, outcome="renamed", other=other, reference=form, candidate=form))
    for side, one, other in paired.tied:
        form = _form((left if side == "reference" else right).tensors[one])
        ours, theirs = (form, None) if side == "reference" else (None, form)
        outcomes.append(TensorOutcome(name=one, outcome="tied", other=other, reference=ours, candidate=theirs))
    outcomes += _lacking(left, right, paired.missing, paired.added)
    nbytes = sum(left.tensors[one].nbytes for one, _ in (*waiting, *paired.renamed))
    renamed = len(paired.renamed)
    return replace(draft, outcomes=tuple(outcomes), tensors=renamed, nbytes=nbytes, rule=paired.rule), waiting


def _matched_by_content(draft: PartComparison, left: Part, right: Part) -> PartComparison:
    """A part of which one side numbers the parameters: what has an equal on the other side, wherever it belongs."""
    pairs = pairing.by_content(list(left.tensors), list(right.tensors), left.tensors, right.tensors)
    gone, new = {one for one, _ in pairs}, {other for _, other in pairs}
    missing = [one for one in left.tensors if one not in gone]
    added = [other for other in right.tensors if other not in new]
    return replace(
        draft,
        tensors=len(pairs),
        identical=len(pairs),
        nbytes=sum(left.tensors[one].nbytes for one, _ in pairs),
        outcomes=tuple(_lacking(left, right, missing, added)),
        by_content=True,
    )


def _lacking(left: Part, right: Part, missing: list[str], added: list[str]) -> list[TensorOutcome]:
    return [
        *(TensorOutcome(name=one, outcome="missing", reference=_form(left.tensors[one])) for one in missing),
        *(TensorOutcome(name=one, outcome="added", candidate=_form(right.tensors[one])) for one in added),
    ]


def _changed(name: str, other: str, left: Stored, right: Stored) -> TensorOutcome:
    """The outcome of two tensors whose elements cannot be paired."""
    return TensorOutcome(
        name=name,
        outcome="dtype" if left.dtype != right.dtype else "shape",
        other=None if name == other else other,
        reference=_form(left),
        candidate=_form(right),
    )


def _form(tensor: Stored) -> Form:
    return name_of(tensor.dtype), tensor.shape


def _measured(
    draft: PartComparison, waiting: list[tuple[str, str]], differences: list[TensorDifference]
) -> PartComparison:
    """A part's comparison with what comparing the elements of its waiting pairs found."""
    differing = [
        TensorOutcome(
            name=one,
            outcome="differs",
            other=None if one == other else other,
            reference=(found.dtype, found.shape),
            candidate=(found.dtype, found.shape),
            difference=found,
        )
        for (one, other), found in zip(waiting, differences, strict=True)
        if not found.identical
    ]
    return replace(
        draft,
        tensors=draft.tensors + len(waiting),
        identical=draft.identical + len(waiting) - len(differing),
        outcomes=(*differing, *draft.outcomes),
    )


def _with_state(draft: PartComparison, left: Part, right: Part, same_names: bool) -> PartComparison:
    """A part's comparison with what differs in plain state.

    same_names: whether parameters have the same names on both sides.
    """
    ours, theirs, ignored = left.plain, right.plain, 0
    if not same_names:
        ours, theirs = _without_parameters(ours), _without_parameters(theirs)
    if not draft.named_alike:
        ours, theirs, ignored = _common(ours, theirs)
    state: list[StateDifference] = []
    if repr(ours) != repr(theirs):  # exact, and much faster than deepdiff
        from diffs.tree import differences

        state = differences(ours, theirs)
    return replace(draft, state=tuple(state), values=bool(ours.keys() & theirs.keys()), ignored=ignored)


def _without_parameters(plain: Any) -> Any:
    """Plain state without the names of an optimizer's parameters."""
    if isinstance(plain, dict):
        return {key: _without_parameters(item) for key, item in plain.items() if key != "parameters"}
    return [_without_parameters(item) for item in plain] if isinstance(plain, list) else plain


def _common(left: Any, right: Any) -> tuple[Any, Any, int]:
    """What two nested states have in common, and how many entries one alone has."""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        items = [_common(one, other) for one, other in zip(left, right, strict=True)]
        return [one for one, _, _ in items], [other for _, other, _ in items], sum(more for _, _, more in items)
    if isinstance(left, (int, float)) and left == right:  # one format writes 1, another 1.0
        return left, left, 0
    if not isinstance(left, dict) or not isinstance(right, dict):
        return left, right, 0
    ours, theirs = {}, {}
    ignored = len(left.keys() ^ right.keys())
    for key in left:
        if key in right:
            ours[key], theirs[key], more = _common(left[key], right[key])
            ignored += more
    return ours, theirs, ignored
