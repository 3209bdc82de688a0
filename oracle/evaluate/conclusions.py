"""From rows to conditional sentences, each with the rows it rests on. No single number decides, and no score is made.

Nothing here quotes a measured number: sentences speak of what the team allows, so that the same evaluation made again
concludes the same. The numbers stand in the rows, with their conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from oracle.evaluate.scenario import Scenario
from oracle.evaluate.schema import Conclusion, Observation, Row, Status


def conclude(
    title: str,
    scenario: Scenario,
    rows: Sequence[Row],
    left_out: Mapping[str, str],
    observations: Sequence[Observation],
    machine: str,
) -> tuple[Conclusion, ...]:
    """The conclusions, the adoption first.

    title: the trainer with its versions. machine: what all of it was measured on.
    """
    judged = observed(rows, observations)
    found = [adoption(title, scenario, judged, left_out)]
    found += _conditions(judged)
    found += _open(judged, left_out)
    found += _changed(title, scenario, rows, observations, left_out)
    return (*found, *_limits(scenario, rows, left_out, machine))


def observed(rows: Sequence[Row], observations: Sequence[Observation]) -> list[Row]:
    """The rows with what was seen elsewhere.

    A failure that was seen makes a failure of a row that did not fail; a success fills only a row that is not known.
    """
    found = []
    for row in rows:
        seen = [one for one in observations if one.row == row.name]
        failed = [one for one in seen if one.outcome == "fail"]
        if failed and row.status != "fail":
            row = replace(row, status="fail", says=f"seen on {failed[-1].date} ({failed[-1].kind}): {failed[-1].says}")
        elif seen and not failed and row.status in ("cannot_tell", "not_run"):
            row = replace(row, status="conditional", says=f"seen on {seen[-1].date} ({seen[-1].kind}): {seen[-1].says}")
        found.append(row)
    return found


def adoption(title: str, scenario: Scenario, rows: Sequence[Row], left_out: Mapping[str, str]) -> Conclusion:
    """Whether the trainer can be adopted, by what decides in this scenario."""
    deciding = [row for row in rows if decides(scenario, row)]
    against = [row for row in deciding if row.status == "fail"]
    unknown = [row.name for row in deciding if row.status in ("cannot_tell", "not_run")]
    unknown += [name for name in left_out if name in scenario.required]
    under = [
        row for row in rows if row.status in ("fail", "conditional") and row not in against and weighs(scenario, row)
    ]
    names = tuple(row.name for row in (*against, *under))
    about = f"For {scenario.name} ({scenario.about}), {title}"
    more = f"; still open: {', '.join(unknown)}" if unknown else ""
    if against:
        rows_against = ", ".join(row.name for row in against)
        says = f"{about} is not to be adopted as it is, but only where {rows_against} is remedied or does not matter"
        return Conclusion(kind="adoption", says=f"{says}{more}", rows=names)
    if unknown:
        says = f"{about} cannot be judged before these are known: {', '.join(unknown)}"
        return Conclusion(kind="adoption", says=says, rows=(*names, *unknown))
    if under:
        says = f"{about} can be adopted under the conditions below"
        return Conclusion(kind="adoption", says=says, rows=names)
    return Conclusion(kind="adoption", says=f"{about} can be adopted", rows=tuple(row.name for row in deciding))


def decides(scenario: Scenario, row: Row) -> bool:
    """Whether a failure of a row speaks against adopting."""
    return row.name in scenario.required or scenario.weights.get(row.dimension) == "decides"


def weighs(scenario: Scenario, row: Row) -> bool:
    """Whether a failure of a row is a condition at least."""
    return decides(scenario, row) or scenario.weights.get(row.dimension) == "matters"


def _conditions(rows: Sequence[Row]) -> Iterator[Conclusion]:
    """What holds only if. Settings that nobody set come first: a user can set them."""
    settable: dict[str, list[Row]] = {}
    for row in rows:
        for setting in row.unset:
            if setting.argument and setting.effect == "semantic":
                settable.setdefault(setting.name, []).append(row)
    known = {setting.name: setting for row in rows for setting in row.unset}
    for name, touched in settable.items():
        one = known[name]
        says = f"If {one.argument} is not set, {name} is {one.acts} where {one.asked} was meant ({one.source})"
        yield Conclusion(kind="condition", says=says, rows=tuple(row.name for row in touched))
    for row in rows:
        if row.status in ("fail", "conditional"):
            word = "Where" if row.status == "fail" else "Note for"
            yield Conclusion(kind="condition", says=f"{word} {_matter(row)}: {row.says}", rows=(row.name,))


def _matter(row: Row) -> str:
    words = row.check.replace("_", " ")
    return f"{words} matters" if row.status == "fail" else words


def _open(rows: Sequence[Row], left_out: Mapping[str, str]) -> Iterator[Conclusion]:
    for row in rows:
        if row.status in ("cannot_tell", "not_run"):
            says = row.says if row.says.startswith("not run") else f"cannot tell: {row.says}"
            yield Conclusion(kind="open", says=f"{row.name}: {says}", rows=(row.name,))
    for name, reason in left_out.items():
        yield Conclusion(kind="open", says=f"{name}: {reason}", rows=())


def _changed(
    title: str,
    scenario: Scenario,
    rows: Sequence[Row],
    observations: Sequence[Observation],
    left_out: Mapping[str, str],
) -> Iterator[Conclusion]:
    """What each observation changed, taken with those before it."""
    for number, one in enumerate(observations):
        before, after = (observed(rows, observations[:count]) for count in (number, number + 1))
        states: list[Status | None] = [
            next((row.status for row in state if row.name == one.row), None) for state in (before, after)
        ]
        sentences = [adoption(title, scenario, state, left_out).says for state in (before, after)]
        moved = (
            f"{one.row} goes from {states[0]} to {states[1]}"
            if states[0] != states[1]
            else f"{one.row} stays {states[0]}"
        )
        whole = (
            "the conclusion on adoption changes" if sentences[0] != sentences[1] else "the conclusion on adoption stays"
        )
        says = f"Observation of {one.date} ({one.kind}, {one.source}): {one.says}; {moved}, and {whole}"
        yield Conclusion(kind="observation", says=says, rows=(one.row,))


def _limits(scenario: Scenario, rows: Sequence[Row], left_out: Mapping[str, str], machine: str) -> Iterator[Conclusion]:
    yield Conclusion(
        kind="limit",
        says=f"All of it was measured on {machine}, on small tasks, with {scenario.settings.seeds} seeds: "
        "other hardware, larger models and longer runs are not covered",
    )
    if any(row.dimension == "performance" for row in rows):
        says = (
            "Times are of turns taken with the baseline on one machine that may do other work: differences are told "
            "by their intervals, and absolute times hold for this machine alone"
        )
        yield Conclusion(kind="limit", says=says)
    if left_out:
        yield Conclusion(kind="limit", says=f"{len(left_out)} checks were left out, as listed")
