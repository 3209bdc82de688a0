"""Evaluations side by side: what their rows say, and numbers only under the same conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from diffs.verdict import Verdict
from oracle.evaluate import archive
from oracle.evaluate.conditions import ConditionsDiffer, side_by_side
from oracle.evaluate.schema import Evaluation, Quantity


def compare(request: Any) -> Any:
    """Two evaluations, as `oracle diff` has it: they are the same where every row and conclusion is."""
    from oracle.diff import Found

    first, second = archive.read(request.reference), archive.read(request.candidate)
    changes = rows(first, second)
    concluded = [[one.says for one in found.conclusions] for found in (first, second)]
    same = not changes and concluded[0] == concluded[1]
    content = {
        "verdict": "match" if same else "diverged",
        "passed": same,
        "reference": first.title,
        "candidate": second.title,
        "rows": changes,
        "quantities": list(quantities(first, second)),
        "conclusions": {"reference": concluded[0], "candidate": concluded[1]} if concluded[0] != concluded[1] else None,
    }
    verdict: Verdict = "match" if same else "diverged"
    return Found(verdict=verdict, passed=same, content=content, lines=lines(first, second, content))


def rows(first: Evaluation, second: Evaluation) -> list[dict[str, Any]]:
    """Rows whose status differs, or that one alone has."""
    names = dict.fromkeys(row.name for found in (first, second) for row in found.rows)
    changed = []
    for name in names:
        one, other = first.row(name), second.row(name)
        states = [row.status if row else None for row in (one, other)]
        if states[0] != states[1]:
            changed.append({"row": name, "reference": states[0], "candidate": states[1],
                            "says": [row.says if row else None for row in (one, other)]})  # fmt: skip
    return changed


def quantities(first: Evaluation, second: Evaluation) -> Iterator[dict[str, Any]]:
    """Each number that both have; where conditions differ, the refusal in place of the numbers."""
    others = {(row.name, one.name, one.unit): one for row in second.rows for one in row.quantities}
    for row in first.rows:
        for one in row.quantities:
            other = others.get((row.name, one.name, one.unit))
            if other is None:
                continue
            entry: dict[str, Any] = {"row": row.name, "name": one.name, "unit": one.unit}
            try:
                side_by_side(one, other, first.conditions, second.conditions)
            except ConditionsDiffer as refused:
                yield {**entry, "refused": str(refused)}
            else:
                yield {**entry, "reference": one.value, "candidate": other.value, "overlap": overlap(one, other)}


def overlap(one: Quantity, other: Quantity) -> bool | None:
    """Whether two intervals overlap; None where one has none."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high


def lines(first: Evaluation, second: Evaluation, content: dict[str, Any]) -> Iterator[str]:
    """The comparison as text."""
    yield f"{first.title}, {first.date}, against {second.title}, {second.date}"
    for change in content["rows"]:
        yield f"  {change['row']}: {change['reference'] or 'absent'} -> {change['candidate'] or 'absent'}"
        yield from (f"    {words}" for words in change["says"] if words)
    if not content["rows"]:
        yield f"  every row has the same status ({len(first.rows)} rows)"
    refused = [entry for entry in content["quantities"] if "refused" in entry]
    for entry in content["quantities"]:
        if "refused" not in entry:
            apart = (
                "" if entry["overlap"] is None else ", intervals overlap" if entry["overlap"] else ", intervals apart"
            )
            both = f"{entry['reference']:.4g} and {entry['candidate']:.4g} {entry['unit']}"
            yield f"  {entry['row']}: {entry['name']} {both}{apart}"
    for reason in dict.fromkeys(entry["refused"] for entry in refused):
        yield f"  refused side by side: {reason}"
    same = content["conclusions"] is None
    yield "the conclusions are the same" if same else "the conclusions differ"


def table(found: Sequence[Evaluation]) -> list[list[str]]:
    """Trainers side by side: a heading, then a line for each row with the status of each."""
    names = dict.fromkeys(row.name for one in found for row in one.rows)
    cells = [["", *(one.title for one in found)]]
    for name in names:
        cells.append(
            [name, *((row.status.replace("_", " ") if (row := one.row(name)) else "left out") for one in found)]
        )
    return cells
