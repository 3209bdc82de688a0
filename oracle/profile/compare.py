"""Two profiles held against each other: what one trainer, or version, does otherwise than another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffs.verdict import NotComparable, Verdict
from oracle.diff import Found, Request
from oracle.errors import OracleError
from oracle.profile.render import named, said, value
from oracle.profile.schema import Entry, Profile, from_dict, is_profile


@dataclass(frozen=True)
class Difference:
    """One thing that differs.

    about: `knob`, `number` or `asked and seen`. name: which. reference, candidate: what each does; None where it is not
        known, or is nothing.
    """

    about: str
    name: str
    reference: str | None
    candidate: str | None


@dataclass(frozen=True)
class Comparison:
    """Two profiles compared.

    reference, candidate: their titles.
    differences: where both are known and are not the same.
    unknown: what one of the two leaves undetermined.
    same: knobs that agree.
    """

    reference: str
    candidate: str
    differences: tuple[Difference, ...]
    unknown: tuple[Difference, ...]
    same: int

    @property
    def verdict(self) -> Verdict:
        """`match` where nothing that both know differs; `not_comparable` where there is nothing that both know."""
        if self.differences:
            return "diverged"
        return "match" if self.same else "not_comparable"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return {"verdict": self.verdict, **asdict(self)}


def compare(reference: Profile, candidate: Profile) -> Comparison:
    """What the second profile has otherwise than the first."""
    differences: list[Difference] = []
    unknown: list[Difference] = []
    same = 0
    for name, ours, theirs in _pairs(reference, candidate):
        one, other = (_sure(entry) for entry in (ours, theirs))
        if one is None and other is None:
            continue
        if one is None or other is None:
            unknown.append(Difference("knob", name, _shown(ours), _shown(theirs)))
        elif one.isdisjoint(other):
            differences.append(Difference("knob", name, _shown(ours), _shown(theirs)))
        elif one == other and len(one) == 1:
            same += 1
        else:
            unknown.append(Difference("knob", name, _shown(ours), _shown(theirs)))
    differences += (*_numbers(reference, candidate), *_changes(reference, candidate))
    return Comparison(reference.title, candidate.title, tuple(differences), tuple(unknown), same)


def _pairs(reference: Profile, candidate: Profile) -> Iterator[tuple[str, Entry | None, Entry | None]]:
    """Entries of both sides by knob, what was asked, and model.

    What one side says of whatever is asked, or of any model, goes with each entry of the other.
    """
    sides = [{(e.knob, e.asked, e.model): e for e in profile.knobs} for profile in (reference, candidate)]
    keys = dict.fromkeys((*sides[0], *sides[1]))
    for key in keys:
        split = key[2] is None and any(other[:2] == key[:2] and other[2] is not None for other in keys)
        if split:  # the other side's entries stand for it, model by model
            continue
        ours, theirs = (_nearest(side, *key) for side in sides)
        entry = sides[0].get(key) or sides[1][key]
        yield named(entry), ours, theirs


def _nearest(
    side: Mapping[tuple[str, str | None, str | None], Entry], knob: str, asked: str | None, model: str | None
) -> Entry | None:
    for key in ((knob, asked, model), (knob, asked, None), (knob, None, model), (knob, None, None)):
        if key in side:
            return side[key]
    return None


def _sure(entry: Entry | None) -> set[str] | None:
    """The values that the trainer may have; None where nothing is known."""
    if entry is None:
        return None
    return {entry.value} if entry.value is not None else set(entry.left) or None


def _shown(entry: Entry | None) -> str | None:
    return None if entry is None or _sure(entry) is None else value(entry)


def _numbers(reference: Profile, candidate: Profile) -> Iterator[Difference]:
    """Numbers that the two do not use alike; what a profile does not name is as the recipe states it."""
    stated = {(n.name, said(n.recipe)): said(n.recipe) for side in (reference, candidate) for n in side.numbers}
    sides = [{(n.name, said(n.recipe)): said(n.trainer) for n in side.numbers} for side in (reference, candidate)]
    for (name, recipe), as_stated in stated.items():
        ours, theirs = (side.get((name, recipe), as_stated) for side in sides)
        if ours != theirs:
            yield Difference("number", f"{name} (recipe {recipe})", ours, theirs)


def _changes(reference: Profile, candidate: Profile) -> Iterator[Difference]:
    """What is asked for and seen otherwise, under the trainers' defaults and under settings that both have.

    Precision and order are knobs, and stand there.
    """
    sides = [
        {(c.subject, c.asked, c.setting): c.seen for c in side.changes if c.subject not in ("precision", "sampler")}
        for side in (reference, candidate)
    ]
    for key in dict.fromkeys((*sides[0], *sides[1])):
        subject, asked, setting = key
        if setting is not None and not all(key in side for side in sides):
            continue
        ours, theirs = (side.get(key, asked) for side in sides)
        if ours != theirs:
            about = f"{subject}, asked {asked}" + (f", with {setting}" if setting else "")
            yield Difference("asked and seen", about, ours, theirs)


# Files


def recognises(path: Path) -> bool:
    """Whether a file is a profile."""
    return path.suffix == ".json" and path.is_file() and is_profile(_content(path))


def compare_files(request: Request) -> Found:
    """Two profiles in files, for `oracle diff`.

    Raises:
        NotComparable: one was written under another schema, or is damaged.
    """
    sides = []
    for path in (request.reference, request.candidate):
        try:
            sides.append(from_dict(_content(path)))
        except OracleError as error:
            raise NotComparable(f"{path}: {error}") from error
    found = compare(*sides)
    content = {"schema": 1, "command": "diff", "kind": "profile", **found.to_dict(), "rerun": request.rerun}
    return Found(verdict=found.verdict, passed=found.verdict == "match", content=content, lines=lines(found))


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def lines(comparison: Comparison) -> Iterator[str]:
    """The comparison as text: the verdict first, then a line for each difference."""
    found, words = len(comparison.differences), comparison.verdict.upper().replace("_", " ")
    yield f"{words}: {comparison.candidate} against {comparison.reference}: {found} of {found + comparison.same} differ"
    for title, rows in (("Differences", comparison.differences), ("Known of one alone", comparison.unknown)):
        if rows:
            yield ""
            yield f"{title} (reference, candidate):"
            width = max(len(row.name) for row in rows)
            for row in rows:
                yield f"  {row.name:<{width}}  {row.reference or '-'}, {row.candidate or '-'}"
