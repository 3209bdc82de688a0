"""What a report says of a golden: what moved, where, in which surroundings, and how to renew it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote

from oracle.report import phrases
from oracle.result import Change, Fact, GoldenCheck, Moved, Result

_MOVED = {
    "nothing": "nothing",
    "code": "the code: the reference loop gives what it gave, bit for bit, and the candidate does not",
    "environment": "the environment: the reference loop gives other values here, too",
    "both": "the environment and the code: the reference loop gives other values, and the candidate decides otherwise",
    "task": "the task: its file changed, and the reference loop gives other values",
    "unknown": "not known",
}


def headline(result: Result, golden: GoldenCheck, ended: str) -> str:
    """Verdict, place and what moved. ended: how the candidate ended, if not well."""
    word = result.verdict.upper().replace("_", " ")
    at = f" at {_place(golden.at)}" if golden.at else ""
    if result.verdict == "match":
        other = "nothing moved" if golden.moved == "nothing" else "the reference loop moved, the candidate did not"
        return f"{word} with {golden.file}: {other}"
    if result.verdict == "rounding":
        what = "environment" if golden.moved == "environment" else "code"
        return f"{word} against {golden.file}{at}: the {what} moved, by rounding alone"
    if result.verdict == "diverged":
        what = "the environment and the code moved" if golden.moved == "both" else "the code moved"
        return f"{word} from {golden.file}{at}: {what}"
    if result.verdict == "nondeterministic" and result.first_divergence:
        return f"{word} at {phrases.place(result.first_divergence)}: two runs of the candidate differ"
    return f"{word} with {golden.file}: {result.reason or ended or 'no reason is known'}"


def facts(result: Result, golden: GoldenCheck) -> Iterator[tuple[str, str]]:
    """The golden, what moved, and how the candidate stands against the reference loop here."""
    yield "golden", f"of {golden.recorded}: {phrases.printable(golden.reason)}"
    if result.verdict != "nondeterministic" and (golden.at or golden.reference_at or golden.moved == "nothing"):
        yield "moved", _MOVED[golden.moved]
    if golden.reference_at:
        yield "loop", f"the reference moved first at {_place(golden.reference_at)}"
    if golden.facts:
        yield "otherwise", surroundings(golden.facts)
    if result.verdict != "nondeterministic" and result.compared.addresses:
        first = result.first_divergence
        equal = "equals the reference loop, bit for bit"
        yield "here", f"the candidate {f'leaves the reference loop at {phrases.place(first)}' if first else equal}"


def changes(golden: GoldenCheck) -> Iterator[str]:
    """A line for each decision that changed."""
    yield from map(change, golden.changes)


def change(one: Change) -> str:
    """A decision with both values: "clip.moment: unscaled -> off, semantic"."""
    status = "" if one.confirmed else " (suggested)"
    return f"{one.knob}: {phrases.value(one.old)} -> {phrases.value(one.new)}, {one.effect}{status}"


def surroundings(facts: Iterable[Fact]) -> str:
    """What differs: "torch 2.12.0 -> 2.13.0"."""
    return ", ".join(f"{fact.name} {fact.old or 'none'} -> {fact.new or 'none'}" for fact in facts)


def renewal(result: Result, golden: GoldenCheck) -> str | None:
    """What to do if it is meant so; None where there is nothing to do."""
    if golden.at is None or result.verdict == "match":
        return None
    return f"oracle golden update {quote(golden.file)} --reason '...'"


def _place(moved: Moved) -> str:
    if not moved.kind:
        return f"update {moved.update}" if moved.moment == "update" else moved.moment
    return f"{phrases.moment(moved.update, -1, moved.moment)}: {phrases.inputs([moved.kind])[0]}"
