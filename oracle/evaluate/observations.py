"""What was seen of a trainer elsewhere: dated canaries and projects, as TOML."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Collection
from pathlib import Path

from oracle.errors import OracleError, near_miss
from oracle.evaluate.schema import Observation
from oracle.result import ResultError, decode


class ObservationsRefused(OracleError):
    """A file that holds no observations, with what was found and what to do."""


def load(file: Path, rows: Collection[str]) -> tuple[Observation, ...]:
    """The observations in a file, `[[observation]]` tables with the fields of `Observation`, by date.

    rows: the names that an observation can bear on.

    Raises:
        ObservationsRefused: a field is missing, unknown or of the wrong type, or names no row.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        found = [
            decode(Observation, {**one, "date": str(one.get("date", ""))}, f"observation {number}")
            for number, one in enumerate(content.pop("observation", []))
        ]
        for one in found:
            datetime.date.fromisoformat(one.date)
    except (OSError, ValueError, AttributeError, ResultError) as error:
        raise ObservationsRefused(f"observations {file}: {error}: see docs/method.md") from error
    if content or not found:
        raise ObservationsRefused(f"observations {file}: [[observation]] tables were expected, found {sorted(content)}")
    for one in found:
        if one.row not in rows:
            raise ObservationsRefused(f"observations {file}: no row {one.row!r}: {near_miss(one.row, rows)}")
    return tuple(sorted(found, key=lambda one: (one.date, one.row)))
