"""What is said of an evaluation, as text and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oracle.evaluate.compare import table
from oracle.evaluate.schema import Evaluation, EvaluationError, Quantity, Row

TITLES = {
    "functional": "Functional completeness",
    "semantic": "Semantic transparency",
    "performance": "Performance and memory",
    "consistency": "Result consistency",
}
MARKS = {
    "pass": "pass",
    "conditional": "under conditions",
    "fail": "FAIL",
    "cannot_tell": "cannot tell",
    "not_run": "not run",
}
KINDS = {
    "condition": "Conditions", "open": "Open", "observation": "Seen elsewhere", "limit": "Limits of this evaluation",
}  # fmt: skip


def lines(found: Evaluation) -> Iterator[str]:
    """The evaluation as text: conclusions first."""
    yield f"{found.title} for {found.scenario['name']}: {found.scenario['about']}"
    yield ""
    yield from _said(found, "  ")
    for dimension in _dimensions(found):
        yield ""
        yield f"{TITLES.get(dimension, dimension)}:"
        for row in _of(found, dimension):
            yield f"  {row.check.ljust(16)} {MARKS[row.status].ljust(16)} {row.says}"
            for quantity in row.quantities:
                yield f"  {''.ljust(33)} {shown(quantity, found)}"
    yield ""
    yield f"evidence: {len({name for row in found.rows for name in row.artifacts})} artifacts, {found.seconds:.0f} s"


def markdown(found: Evaluation) -> str:
    """The evaluation as a page."""
    made = f"Scenario: {found.scenario['about']}. {found.date}, {found.seconds:.0f} s. Made by `{found.command}`."
    page = [f"# {found.title} for {found.scenario['name']}", "", made, "", "## Conclusions", ""]
    page += [f"- {words}" if words and not words.startswith("**") else words for words in _said(found, "", bold="**")]
    for dimension in _dimensions(found):
        page += [
            "",
            f"## {TITLES.get(dimension, dimension)}",
            "",
            "| check | finding | says | evidence |",
            "|---|---|---|---|",
        ]
        page += [_row(row) for row in _of(found, dimension)]
        numbers = [quantity for row in _of(found, dimension) for quantity in row.quantities]
        if numbers:
            page += ["", "| number | value | 95 % interval | n | conditions |", "|---|---|---|---|---|"]
            page += [_number(quantity, found) for quantity in numbers]
    efforts = [row for row in found.rows if row.effort is not None]
    if efforts:
        page += ["", "## What it took", "", "| feature | settings | lines |", "|---|---|---|"]
        page += [f"| {row.check.replace('_', ' ')} | {_code(row.effort.settings) or 'none'} | "  # type: ignore[union-attr]
                 f"{'' if row.effort.lines is None else row.effort.lines} |" for row in efforts]  # type: ignore[union-attr] # fmt: skip
    hidden = found.row("semantic.hidden")
    if hidden is not None and hidden.unset:
        page += ["", "## What acts without being asked for", "",
                 "| setting | asked | acts | source | output tells |", "|---|---|---|---|---|"]  # fmt: skip
        page += [
            f"| `{one.name}` | {one.asked} | {one.acts} | {one.source or 'not found'} | {_yes(one.logged)} |"
            for one in hidden.unset
        ]
    page += ["", "## Conditions", ""]
    for name, facts in found.conditions.items():
        page.append(f"- `{name}`: " + ", ".join(f"{key} {_plain(value)}" for key, value in facts.items()))
    return "\n".join(page) + "\n"


def side_by_side(found: Sequence[Evaluation]) -> str:
    """Several trainers as one table of a page."""
    heading, *cells = table(found)
    rows = [heading, ["---"] * len(heading), *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def shown(quantity: Quantity, found: Evaluation) -> str:
    """A number with its unit, interval and conditions.

    Raises:
        EvaluationError: its conditions are not known; then it is not shown.
    """
    _under(quantity, found)
    interval = "" if quantity.low is None else f" [{quantity.low:.4g}, {quantity.high:.4g}]"
    count = "" if quantity.n is None else f", n {quantity.n}"
    return f"{quantity.name}: {quantity.value:.4g}{interval} {quantity.unit}{count}, under {quantity.under}"


def _under(quantity: Quantity, found: Evaluation) -> None:
    if quantity.under not in found.conditions:
        raise EvaluationError(f"{quantity.name}: a number without its conditions is not shown")


def _said(found: Evaluation, indent: str, bold: str = "") -> Iterator[str]:
    for one in found.conclusions:
        if one.kind == "adoption":
            yield f"{indent}{one.says}."
    for kind, title in KINDS.items():
        chosen = [one for one in found.conclusions if one.kind == kind]
        if chosen:
            yield ""
            yield f"{bold}{title}{bold}" if bold else f"{title}:"
            if bold:
                yield ""
            yield from (f"{indent}{one.says}{_rests(one.rows)}." for one in chosen)


def _rests(rows: Sequence[str]) -> str:
    return f" [{', '.join(rows)}]" if rows else ""


def _dimensions(found: Evaluation) -> list[str]:
    return list(
        dict.fromkeys(row.dimension for row in sorted(found.rows, key=lambda row: list(TITLES).index(row.dimension)))
    )


def _of(found: Evaluation, dimension: str) -> list[Row]:
    return [row for row in found.rows if row.dimension == dimension]


def _row(row: Row) -> str:
    evidence = " ".join(f"`{name}`" for name in row.artifacts[:3])
    more = f" and {len(row.artifacts) - 3} more" if len(row.artifacts) > 3 else ""
    return f"| {row.check.replace('_', ' ')} | {MARKS[row.status]} | {row.says.replace('|', '/')} | {evidence}{more} |"


def _number(quantity: Quantity, found: Evaluation) -> str:
    _under(quantity, found)
    interval = "" if quantity.low is None else f"{quantity.low:.4g} to {quantity.high:.4g}"
    count = "" if quantity.n is None else str(quantity.n)
    return f"| {quantity.name} | {quantity.value:.4g} {quantity.unit} | {interval} | {count} | `{quantity.under}` |"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _code(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _plain(value: object) -> str:
    return str(value).replace("|", "/")


def exit_code(found: Evaluation) -> int:
    """0 where it can be adopted, also under conditions; 1 where not as it is; 3 where what decides is not known."""
    says = next(one.says for one in found.conclusions if one.kind == "adoption")
    return 1 if "is not to be adopted" in says else 3 if "cannot be judged" in says else 0
