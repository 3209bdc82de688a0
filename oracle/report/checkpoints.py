"""What a comparison or an audit of checkpoints found, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from diffs.checkpoints.checkpoint import PARTS, TITLES, Checkpoint
from diffs.checkpoints.comparison import CheckpointComparison, Form, PartComparison, TensorOutcome
from diffs.render import count, distance, number, place_of, shortened
from diffs.tensor import TensorDifference

if TYPE_CHECKING:
    from oracle.audit import Audit
    from oracle.diff import Request

TENSORS, ENTRIES = 4, 8  # shown of each part
LONGEST = 60  # characters of a value

# What a difference in a part means for a resume.
MEANS = {
    "parameter": "training goes on from other weights",
    "optimizer": "the next update is another one, even from the same gradient",
    "scheduler": "later updates have other learning rates",
    "scaler": "float16 gradients are scaled otherwise, and other updates are skipped",
    "rng": "dropout, augmentation and shuffling draw other numbers",
    "order": "samples come in another order",
    "cursor": "training goes on at another batch",
    "counter": "updates are counted otherwise: schedules, logs and the end of training shift",
    "accumulated_gradient": "the open window ends with another gradient",
    "ema": "what is evaluated or exported at the end is another average",
    "arguments": "the runs were asked for something else",
    "other": "nothing that a resume is known to need",
}


def comparison_lines(comparison: CheckpointComparison, seconds: dict[str, float], request: Request) -> Iterator[str]:
    """The report of a comparison; its first line says it all."""
    yield _headline(comparison)
    yield ""
    yield f"  reference  {_where(comparison.reference)}"
    yield f"  candidate  {_where(comparison.candidate)}"
    yield (
        f"  compared   {count(comparison.tensors, 'tensor')}, {size(comparison.nbytes)} a side, "
        f"in {seconds['open'] + seconds['compare']:.2f} s"
    )
    for part in comparison.parts:
        if part.compared and (part.sides == "both" or not part.same):
            yield ""
            yield from _part_lines(part, request.everything)
    alone = {side: [p.part for p in comparison.parts if not p.compared and p.sides == side] for side in _SIDES}
    for side, parts in alone.items():
        if parts:
            yield ""
            yield f"Not compared: {_names(parts)} ({_SIDES[side]})."
    for side, checkpoint in (("reference", comparison.reference), ("candidate", comparison.candidate)):
        if checkpoint.unread:
            yield ""
            yield f"Not read in the {side}: {_some(checkpoint.unread)}."
    yield ""
    yield "Run again:"
    yield f"  {request.rerun}"


_SIDES = {
    "reference": "the reference alone has it",
    "candidate": "the candidate alone has it",
    "both": "the two formats mean different things by it",
}


def _headline(comparison: CheckpointComparison) -> str:
    if comparison.reason is not None:
        return f"NOT COMPARABLE: {comparison.reason}"
    differing = [part for part in comparison.parts if not part.same]
    if not differing:
        if not comparison.tensors:
            return "MATCH: all plain state; neither holds a tensor"
        return f"MATCH: {count(comparison.tensors, 'tensor')}, bit for bit, and all state that both have"
    first = differing[0]
    tensors = sum(outcome.decisive for part in differing for outcome in part.outcomes)
    entries = sum(len(part.state) for part in differing)
    amounts = [count(n, noun) for n, noun in ((tensors, "tensor"), (entries, "value")) if n]
    what = f": {' and '.join(amounts)}" if amounts else ""
    return f"DIFFERS in {_names([part.part for part in differing])}{what}; first: {_first(first)}"


def _first(part: PartComparison) -> str:
    if part.sides != "both":
        return f"{TITLES[part.part]}, which the {part.sides} alone has"
    outcome = next((outcome for outcome in part.outcomes if outcome.decisive), None)
    if outcome is not None:
        return f"{outcome.name} ({_SHORT[outcome.outcome]})"
    if part.state:
        return ".".join(map(str, part.state[0].path))
    return f"names of {TITLES[part.part]}"


_SHORT = {
    "differs": "differs", "dtype": "another dtype", "shape": "another shape", "missing": "missing in the candidate",
    "added": "missing in the reference", "renamed": "renamed", "tied": "tied",
}  # fmt: skip


def _part_lines(part: PartComparison, everything: bool) -> Iterator[str]:
    title = TITLES[part.part]
    if part.sides != "both":
        yield f"{title}: the {part.sides} alone has it; {MEANS[part.part]}"
        return
    yield f"{title}: {_summary(part)}{'' if part.same else '; ' + MEANS[part.part]}"
    if part.rule is not None:
        yield f"  names: {part.rule}: {part.rule.names} of them"
    if part.by_content:
        yield "  one side numbers the parameters: tensors are paired by content alone"
    limit = len(part.outcomes) if everything else TENSORS
    for outcome in part.outcomes[:limit]:
        yield from _outcome_lines(outcome)
    if len(part.outcomes) > limit:
        yield f"  ... {count(len(part.outcomes) - limit, 'more tensor')}: --all shows all"
    entries = (
        f"  {'.'.join(map(str, one.path)) or 'value'}: {_value(one.reference, one.kind == 'added')} against "
        f"{_value(one.candidate, one.kind == 'missing')}"
        for one in part.state
    )
    yield from (
        f"  {line}" if line.startswith("...") else line
        for line in shortened(entries, 1 << 60 if everything else ENTRIES, "--all")
    )
    if part.ignored:
        yield f"  {count(part.ignored, 'entry')} of one format alone, not compared".replace("entrys", "entries")


def _summary(part: PartComparison) -> str:
    amounts = {"identical": part.identical}
    for outcome in part.outcomes:
        word = _SHORT[outcome.outcome]
        amounts[word] = amounts.get(word, 0) + 1
    amounts = {"differ" if word == "differs" and amount > 1 else word: amount for word, amount in amounts.items()}
    said = [f"{amount:,} {word}" for word, amount in amounts.items() if amount]
    if part.state:
        said.append(
            f"{count(len(part.state), 'value')} of plain state {'differs' if len(part.state) == 1 else 'differ'}"
        )
    elif part.values:
        said.append("plain state identical")
    return ", ".join(said) or "nothing in common"


def _outcome_lines(outcome: TensorOutcome) -> Iterator[str]:
    other = f" (candidate: {outcome.other})" if outcome.other and outcome.outcome not in ("renamed", "tied") else ""
    match outcome.outcome:
        case "differs":
            yield f"  {outcome.name}{other}  {_form(outcome.reference)}"
            if outcome.difference is not None:
                yield from (f"    {line}" for line in _difference_lines(outcome.difference))
        case "dtype" | "shape":
            yield f"  {outcome.name}{other}  {_form(outcome.reference)} against {_form(outcome.candidate)}"
        case "renamed":
            yield f"  {outcome.name}  has the same content as the candidate's {outcome.other}"
        case "tied":
            side = "reference" if outcome.reference else "candidate"
            yield f"  {outcome.name}  is tied to {outcome.other} in the {side}, and stored once on the other side"
        case _:
            yield f"  {outcome.name}  {_SHORT[outcome.outcome]}, {_form(outcome.reference or outcome.candidate)}"


def _difference_lines(found: TensorDifference) -> Iterator[str]:
    worst = found.worst
    if worst is None:
        return
    place = f" at {place_of(worst.index)}" if worst.index else ""
    share = 100 * found.differing / found.total
    yield (
        f"differs    {found.differing:,} of {count(found.total, 'element')} ({share:.3g} %), "
        f"worst {distance(worst, found.dtype)}{place}, relative L2 {found.relative_l2:.2g}"
    )
    yield f"reference  {number(worst.reference, found.dtype)}"
    yield f"candidate  {number(worst.candidate, found.dtype)}"


def _form(form: Form | None) -> str:
    return "" if form is None else f"{form[0]} {form[1]}"


def _value(value: Any, lacking: bool) -> str:
    if lacking:
        return "nothing"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _where(checkpoint: Checkpoint) -> str:
    return f"{printable(str(checkpoint.path))}  ({checkpoint.format})"


def _names(parts: list[str]) -> str:
    return ", ".join(TITLES[part] for part in PARTS if part in parts)


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(printable, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def printable(text: str) -> str:
    """A path or file name on one line, whatever is in it."""
    return text if text.isprintable() else ascii(text)


def size(nbytes: int) -> str:
    """Bytes as people read them: 1.08 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes} bytes"


def audit_lines(audit: Audit) -> Iterator[str]:
    """The report of an audit; its first line says it all."""
    yield audit.headline
    yield ""
    yield f"  checkpoint  {printable(str(audit.path))}"
    yield f"  format      {audit.format}"
    yield f"  safe        {audit.safety[0]}"
    yield from (f"              {line}" for line in audit.safety[1:])
    if audit.entries:
        yield ""
    width = max((len(TITLES[entry.part]) for entry in audit.entries), default=0)
    for entry in audit.entries:
        yield f"  {TITLES[entry.part]:<{width}}  {entry.status:<8}  {entry.says}"
    for note in audit.notes:
        yield ""
        yield f"Note: {note}."
