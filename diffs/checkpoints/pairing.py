"""Pairs the tensors of two tables: by name, by a rule for prefixes, by being tied, and by content."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diffs.checkpoints.stored import Stored
from diffs.checkpoints.windows import digest

Table = Mapping[str, Stored]


@dataclass(frozen=True)
class Rule:
    """How names of the reference become names of the candidate: one prefix is taken off, another put on.

    names: how many it pairs.
    """

    off: str
    on: str
    names: int

    def __str__(self) -> str:
        taken = f"the reference has the prefix {self.off!r}" if self.off else ""
        put = f"the candidate has the prefix {self.on!r}" if self.on else ""
        return ", ".join(filter(None, (taken, put)))


@dataclass
class Pairing:
    """Which tensor of the reference stands against which of the candidate.

    same: (name, candidate's name) that are to be compared. rule: what names of the reference lack, if they differ.
    renamed: (name, candidate's name) of equal content, found by it.
    tied: (side, name, other name): the other side lacks the name, and has the other one, which is the same memory.
    missing: names that the candidate lacks. added: names that the reference lacks.
    """

    same: list[tuple[str, str]] = field(default_factory=list)
    rule: Rule | None = None
    renamed: list[tuple[str, str]] = field(default_factory=list)
    tied: list[tuple[str, str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def pair(reference: Table, candidate: Table) -> Pairing:
    """Pair two tables of tensors. Content is read only of tensors that have no namesake but one of their shape."""
    found = Pairing(same=[(name, name) for name in reference if name in candidate])
    left = [name for name in reference if name not in candidate]
    right = [name for name in candidate if name not in reference]
    if left and right and (rule := _rule(left, right, reference, candidate)) is not None:
        found.rule = rule
        waiting = set(right)
        for name in left:
            other = rule.on + name.removeprefix(rule.off)
            if name.startswith(rule.off) and other in waiting:
                found.same.append((name, other))
                waiting.discard(other)
        paired = {name for name, _ in found.same}
        left, right = [name for name in left if name not in paired], [name for name in right if name in waiting]
    left = _untied(found, "reference", left, [name for name, _ in found.same], reference)
    right = _untied(found, "candidate", right, [other for _, other in found.same], candidate)
    found.renamed = by_content(left, right, reference, candidate)
    gone, new = {name for name, _ in found.renamed}, {other for _, other in found.renamed}
    found.missing = [name for name in left if name not in gone]
    found.added = [name for name in right if name not in new]
    return found


def _rule(left: list[str], right: list[str], reference: Table, candidate: Table) -> Rule | None:
    """The rule for prefixes that pairs most names of one shape; it must pair most of the shorter list."""
    votes: Counter[tuple[str, str]] = Counter()
    ends: dict[str, list[str]] = defaultdict(list)
    for other in right:
        for suffix in _suffixes(other):
            ends[suffix].append(other)
    for name in left:
        suffix = next((suffix for suffix in _suffixes(name) if suffix in ends), "")
        for other in ends.get(suffix, ())[:4]:
            if _alike(reference[name], candidate[other]):
                votes[name.removesuffix(suffix), other.removesuffix(suffix)] += 1
    if not votes:
        return None
    (off, on), count = max(votes.items(), key=lambda item: (item[1], -len(item[0][0]) - len(item[0][1])))
    return Rule(off, on, count) if count * 2 > min(len(left), len(right)) else None


def _suffixes(name: str) -> list[str]:
    """The name, and what is left of it after each dot, longest first."""
    words = name.split(".")
    return [".".join(words[start:]) for start in range(len(words))]


def _alike(left: Stored, right: Stored) -> bool:
    return (left.dtype, left.shape) == (right.dtype, right.shape)


def _untied(found: Pairing, side: str, names: list[str], paired: list[str], table: Table) -> list[str]:
    """The names that are not the same memory as one that is paired; those that are go to `tied`."""
    places: dict[Any, str] = {table[name].place: name for name in paired if table[name].place is not None}
    left = []
    for name in names:
        other = places.get(table[name].place) if table[name].place is not None else None
        if other is None:
            left.append(name)
        else:
            found.tied.append((side, name, other))
    return left


def by_content(left: list[str], right: list[str], reference: Table, candidate: Table) -> list[tuple[str, str]]:
    """Pairs of equal dtype, shape and content; where several are alike, they are paired in order."""
    ours, theirs = _by_form(left, reference), _by_form(right, candidate)
    found = []
    for form in ours.keys() & theirs.keys():
        waiting: dict[bytes, list[str]] = defaultdict(list)
        for other in theirs[form]:
            waiting[digest(candidate[other])].append(other)
        for name in ours[form]:
            if others := waiting.get(digest(reference[name])):
                found.append((name, others.pop(0)))
    order = {name: place for place, name in enumerate(left)}
    return sorted(found, key=lambda item: order[item[0]])


def _by_form(names: list[str], table: Table) -> dict[Any, list[str]]:
    forms: dict[Any, list[str]] = defaultdict(list)
    for name in names:
        forms[table[name].dtype, table[name].shape].append(name)
    return forms
