"""The matrix as a page: a row for each trainer and recipe, a column for each task, and below it what is not proven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from oracle.matrix.cell import Answer, Cell, State
from oracle.matrix.recipes import VARIANTS

INTRO = """\
# Matrix

What `oracle check` says of every trainer on every built-in task under every recipe, written by `make matrix`. Each is
trained in float32 unless the recipe says otherwise, twice, and held against the reference loop.

| a cell says | which means |
|---|---|
| match | bit-identical to the textbook's loop, from the first update to the last |
| rounding | the same in another order: a style that a replay proves, or within the measured [floor](../noise.md) |
| explained | bit-identical to the reference loop with these decisions, each proven by a replay |
| suggested | these decisions fit, and one at least is not proven: its evidence is thin, or rounding stands beside it |
| unexplained | a difference at this place has no cause among the [knobs](../knobs.md) |
| refused | the trainer has no such thing; the reason is below |
| failed | it did not train to its end, or nothing could be compared |
| absent | its packages could not be installed here |

"or 2 like it" behind a decision: so many others are bit-identical as well, and the task cannot tell them apart.
"""


def page(answers: Mapping[Cell, Answer]) -> str:
    """The whole page. answers: of all cells that it is to hold, in the order of its rows and columns."""
    parts = [INTRO, _counts(answers.values()), _recipes(answers), _versions(answers), _table(answers)]
    listed = list(_open(answers))
    parts.append("## What is not bit-identical under named decisions\n\n" + ("\n".join(listed) or "Nothing.") + "\n")
    refusals = list(_refusals(answers))
    if refusals:
        parts.append("## What is refused\n\n" + "\n".join(refusals) + "\n")
    return "\n".join(parts)


def label(cell: Cell) -> str:
    """A trainer with its release: "transformers 4.54.0", or as it is installed."""
    version = next((text.partition("==")[2] for text in cell.requirements), "")
    return f"{cell.trainer} {version}".strip()


def said(answer: Answer) -> str:
    """What stands in a cell."""
    causes = ", ".join(f"`{one}`" for one in answer.causes)
    doubts = ", ".join(f"`{one}`?" for one in answer.doubts)
    every = ", ".join(filter(None, [causes, doubts]))
    match answer.state:
        case "rounding" | "explained" | "suggested":
            beyond = f", floor {answer.rounds}" if answer.rounds and every else " (floor)" if answer.rounds else ""
            return f"{answer.state}{': ' if every else ''}{every}{beyond}"
        case "unexplained":
            more = f" and {len(answer.places) - 1} more" if len(answer.places) > 1 else ""
            return f"**unexplained** at {answer.places[0]}{more}" + (f"; {every}" if every else "")
        case "failed" | "absent":
            return f"**{answer.state}**"
    return answer.state


def _counts(answers: Iterable[Answer]) -> str:
    found = Counter(answer.state for answer in answers)
    words = [f"{found[state]} {state}" for state in get_args(State) if found[state]]
    return f"{sum(found.values())} cells: {', '.join(words)}.\n"


def _recipes(answers: Iterable[Cell]) -> str:
    used = dict.fromkeys(cell.variant for cell in answers)
    rows = [[f"`{name}`", VARIANTS[name].about, " ".join(f"`{text}`" for text in VARIANTS[name].sets)] for name in used]
    return _lines([["recipe", "is", "sets on the task's own"], *rows])


def _versions(answers: Mapping[Cell, Answer]) -> str:
    rows: dict[str, list[str]] = {}
    for cell, answer in answers.items():
        if answer.versions and label(cell) not in rows:
            shown = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
            rows[label(cell)] = [label(cell), shown]
    return _lines([["trainer", "ran with"], *rows.values()]) if rows else ""


def _table(answers: Mapping[Cell, Answer]) -> str:
    tasks = list(dict.fromkeys(cell.task for cell in answers))
    rows: dict[object, dict[str, str]] = {}
    heads: dict[object, list[str]] = {}
    for cell, answer in answers.items():
        heads.setdefault(cell.row, [label(cell), f"`{cell.variant}`"])
        rows.setdefault(cell.row, {})[cell.task] = said(answer)
    body = [[*heads[row], *(cells.get(task, "") for task in tasks)] for row, cells in rows.items()]
    return _lines([["trainer", "recipe", *tasks], *body])


def _open(answers: Mapping[Cell, Answer]) -> Iterator[str]:
    """A line for each cell of which not all is proven: where, why, and the command that shows it."""
    for cell, answer in answers.items():
        reasons = [f"unexplained at {place}" for place in answer.places]
        reasons += [f"suggested: {answer.reason}"] if answer.doubts else []
        reasons += [f"within the noise floor: {answer.rounds}"] if answer.rounds else []
        reasons += [f"{answer.state}: {answer.reason}"] if answer.state in ("failed", "absent") else []
        if reasons:
            yield f"- {label(cell)}, `{cell.variant}`, {cell.task}: {'; '.join(reasons)}\n  `{cell.command}`"


def _refusals(answers: Mapping[Cell, Answer]) -> Iterator[str]:
    """A line for each reason, with the cells that it holds of."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell, answer in answers.items():
        if answer.state == "refused":
            found.setdefault((label(cell), answer.reason), []).append(f"`{cell.variant}` {cell.task}")
    for (trainer, reason), cells in found.items():
        yield f"- {trainer}: {reason}\n  ({', '.join(cells)})"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    first, *rest = rows
    table = [first, ["---"] * len(first), *rest]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in table) + "\n"
