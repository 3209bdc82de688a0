"""What a report says of interruptions: where a run was cut, how it died, and what came of the resumed one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from oracle.report import phrases
from oracle.report.phrases import Count
from oracle.result import Resumption

HEADING = ("cut", "death", "resumed with", "outcome")
WIDTH = 100  # of a reason; the JSON has all of it


def table(resumptions: Iterable[Resumption]) -> tuple[str, ...]:
    """A line for each interruption, in columns, under a heading."""
    rows = [HEADING, *map(_row, resumptions)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


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
        words += f": {one.missing.replace(',', ', ')} not restored ({one.status})"
    if one.reason is not None:
        reason = phrases.printable(one.reason.strip().partition("\n")[0])
        words += f": {textwrap.shorten(reason, WIDTH, placeholder='...')}"
    return words
