"""What a report says of interruptions: where a run was cut, how it died, and what came of the resumed one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from oracle.report import phrases
from oracle.report.phrases import Count
from oracle.report.sentences import NEEDED
from oracle.result import Result, Resumption

HEADING = ("cut", "death", "resumed with", "outcome")
WIDTH = 100  # of a reason; the JSON has all of it


def table(resumptions: Iterable[Resumption]) -> tuple[str, ...]:
    """A line for each interruption, in columns, under a heading."""
    rows = [HEADING, *map(_row, resumptions)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def idle(result: Result) -> bool:
    """Whether a match says nothing of a resume: every run that matches died before anything was saved."""
    matching = [one for one in result.resumptions if one.verdict == "match"]
    return bool(matching) and all(one.saved is None and one.began == 0 for one in matching)


def _row(one: Resumption) -> tuple[str, str, str, str]:
    began = "" if one.began is None else f"{Count(one.began):update}"
    if one.began_micro:
        began += f" and {Count(one.began_micro):micro-batch}"
    return one.cut, one.death, began, _outcome(one)


def _outcome(one: Resumption) -> str:
    words = one.verdict.replace("_", " ")
    if one.at is not None:
        words += f" at update {one.at.update}, {one.at.moment}"
    if one.missing is not None:
        nothing = set(one.missing.split(",")) >= NEEDED
        words += f": {'nothing' if nothing else f'{one.missing} not'} restored ({one.status})".replace(",", ", ")
    if one.reason is not None:
        reason = phrases.printable(one.reason.strip().partition("\n")[0])
        words += f": {textwrap.shorten(reason, WIDTH, placeholder='...')}"
    return words
