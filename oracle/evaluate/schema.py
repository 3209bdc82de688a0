"""What an evaluation holds; its JSON is these fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from oracle.errors import OracleError
from oracle.result import ResultError, decode, encode

SCHEMA = 1

Status = Literal["pass", "conditional", "fail", "cannot_tell", "not_run"]
DIMENSIONS = ("functional", "semantic", "performance", "consistency")


class EvaluationError(OracleError):
    """Something that is no evaluation of this version, with what was found."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number with the conditions that it was measured under, without which it is not shown.

    under: which of the evaluation's conditions. low, high: its interval, where it has one. n: of how many measurements.
    """

    name: str
    value: float
    unit: str
    under: str
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value that acts and that nobody asked for.

    name: the knob, or "hyperparameter.name". asked: what the recipe has or means; acts: what the trainer does.
    source: where the value comes from, in words; None where that was not found.
    argument: what can be set; None where nothing can. logged: whether the trainer's output mentions it.
    effect: `semantic` or `style`.
    """

    name: str
    asked: str
    acts: str
    source: str | None = None
    argument: str | None = None
    logged: bool = False
    effect: Literal["semantic", "style"] = "semantic"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What it took to switch a feature on.

    settings: arguments that are passed for it. lines: of the trainer's file, or its adapter's, that depend on the
    recipe's field; None where the source was not read.
    """

    settings: tuple[str, ...] = ()
    lines: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one check came to.

    step: of the method. says: the finding, a clause. unset: values that nobody asked for and that bear on it, looked
    for before anything else is blamed. details: what else was found, plain data. artifacts: the files that were read.
    """

    check: str
    dimension: str
    step: int
    status: Status
    says: str
    quantities: tuple[Quantity, ...] = ()
    unset: tuple[Setting, ...] = ()
    effort: Effort | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Dimension and check: "performance.time"."""
        return f"{self.dimension}.{self.check}"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was seen of the trainer elsewhere.

    date: ISO. kind: `canary` or `project`. row: the row it bears on. source: where it can be read.
    """

    date: str
    kind: Literal["canary", "project"]
    row: str
    outcome: Literal["pass", "fail"]
    says: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """A conditional sentence, and the rows that it rests on.

    kind: `adoption`; a `condition` of it; an `open` question; an `observation` and what it changed; a `limit`.
    """

    kind: Literal["adoption", "condition", "open", "observation", "limit"]
    says: str
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One trainer under one scenario.

    title: the trainer with its versions. scenario: its content. conditions: by name, what numbers were measured under.
    surroundings: everything that was fixed beforehand. left_out: check to reason. date: ISO, in UTC.
    command: what was given. oracle: our version.
    """

    trainer: str
    title: str
    scenario: Mapping[str, Any]
    conditions: Mapping[str, Any]
    surroundings: Mapping[str, Any]
    rows: tuple[Row, ...]
    left_out: Mapping[str, str]
    observations: tuple[Observation, ...]
    conclusions: tuple[Conclusion, ...]
    date: str
    seconds: float
    command: str
    oracle: str
    schema: int = SCHEMA

    def to_json(self) -> str:
        """The text of evaluation.json."""
        plain = encode(self)
        text = {"evaluation": plain.pop("schema"), **plain}
        return json.dumps(text, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def row(self, name: str) -> Row | None:
        """The row of that name."""
        return next((row for row in self.rows if row.name == name), None)


def from_dict(plain: Any) -> Evaluation:
    """The evaluation that `to_json` wrote.

    Raises:
        EvaluationError: it is none, or of another schema.
    """
    if not isinstance(plain, Mapping) or plain.get("evaluation") != SCHEMA:
        found = plain.get("evaluation", "none") if isinstance(plain, Mapping) else type(plain).__name__
        raise EvaluationError(f"an evaluation of schema {SCHEMA} was expected, found {found}: evaluate again")
    content = {key: value for key, value in plain.items() if key != "evaluation"}
    try:
        return decode(Evaluation, {**content, "schema": SCHEMA}, "evaluation")
    except ResultError as error:
        raise EvaluationError(f"an evaluation that is damaged: {error}: evaluate again") from error


def read(file: Path) -> Evaluation:
    """The evaluation in a file. Raises EvaluationError as `from_dict` does, and OSError."""
    try:
        return from_dict(json.loads(file.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise EvaluationError(f"{file}: JSON was expected, found {error}: evaluate again") from error
