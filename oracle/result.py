"""What a command found, as frozen data: the JSON that `--json` writes and from which every report is rendered.

The schema is docs/result.schema.json; docs/result.md says what each field means. Numbers that JSON lacks are written as
the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from oracle.errors import OracleError, OutputError

SCHEMA = 1

Verdict = Literal["match", "rounding", "diverged", "nondeterministic", "not_comparable"]
Side = Literal["reference", "candidate"]
# A recorded scalar as it was read, a list of them (betas), or text; None where there is none.
Value: TypeAlias = Any

_INFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class ResultError(OracleError):
    """A file that is no result of this version, with what was found."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How much was compared. unmatched: addresses that one side alone has."""

    updates: int
    addresses: int
    unmatched: int = 0


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """Whether two runs of the candidate were bit-identical, and over how many addresses."""

    identical: bool
    addresses: int


@dataclass(frozen=True, kw_only=True)
class FirstDivergence:
    """The first decisive address, in causal order, at which the two runs differ.

    index, reference, candidate, ulp: of the worst element; a scalar has no index, and what has no number no ulp.
    max_abs: the largest absolute difference. differing of total: elements. dtype: of both, as "float32".
    missing: the side that lacks the address altogether.
    error, allowance: the candidate's error against float64 values computed locally, and what the rounding floor allows.
    """

    update: int
    micro: int
    moment: str
    kind: str
    name: str
    rank: int = 0
    dtype: str | None = None
    index: tuple[int, ...] | None = None
    reference: Value = None
    candidate: Value = None
    ulp: int | None = None
    max_abs: float | None = None
    differing: int | None = None
    total: int | None = None
    missing: Side | None = None
    error: float | None = None
    allowance: float | None = None


@dataclass(frozen=True, kw_only=True)
class Site:
    """The earliest moment whose inputs all agree, bit for bit, and whose outputs do not."""

    update: int
    micro: int
    moment: str
    kind: str
    name: str = ""
    rank: int = 0
    agreeing_inputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class At:
    """Where a cause first shows."""

    update: int
    moment: str


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A decision that the candidate makes otherwise.

    knob, reference, candidate: the decision and its value on either side.
    status: `confirmed` only if the replay is bit-identical and no other value that departs there is.
    identical_through_update: the last update through which the replay with this cause is bit-identical.
    indistinguishable: other values, as "knob = value", that fit as well. separated_by: what tells them apart.
    evidence: what the numbers say, a clause each. facts: numbers that the sentence about this knob cites, by name.
    remedy: the candidate's own argument that restores the reference's meaning, or that none exists.
    """

    knob: str
    reference: Value
    candidate: Value
    status: Literal["confirmed", "suggested"]
    effect: Literal["semantic", "style"]
    at: At
    identical_through_update: int | None = None
    indistinguishable: tuple[str, ...] = ()
    separated_by: str | None = None
    evidence: tuple[str, ...] = ()
    facts: Mapping[str, Value] = field(default_factory=dict)
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Unexplained:
    """A site that no knob explains, with what was tried and does not fit, as "knob = value".

    evidence: what the numbers there say, in sentences without a full stop; no claim of a cause.
    """

    site: Site
    ruled_out: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Latent:
    """A difference in a witness kind that no decisive value shows. addresses: how many places of this kind differ."""

    update: int
    micro: int
    moment: str
    kind: str
    name: str
    rank: int = 0
    reference: Value = None
    candidate: Value = None
    addresses: int = 1


@dataclass(frozen=True, kw_only=True)
class OneSided:
    """Values that one side alone can have: listed, not judged."""

    side: Side
    moment: str
    kind: str
    name: str
    addresses: int = 1


@dataclass(frozen=True, kw_only=True)
class BetweenRanks:
    """The first place of a kind at which the candidate's ranks differ and the reference's do not, or the reverse.

    rank: the one that is not like the others. agree: the candidate's ranks hold the same there, and should not.
    """

    update: int
    micro: int
    moment: str
    kind: str
    name: str
    rank: int
    agree: bool


@dataclass(frozen=True, kw_only=True)
class CandidateOutcome:
    """How the candidate's run ended.

    error: "Type: message" of what it raised. signal: the name of what killed it, such as SIGKILL.
    timeout: the seconds it was given, where it was stopped for taking longer. last_words: the end of what it printed.
    rank, at: of several ranks, the one that ended the run or held it up, and the last place where it was seen.
    """

    status: Literal["completed", "raised", "killed", "timed_out"]
    updates: int | None = None
    error: str | None = None
    signal: str | None = None
    exit_code: int | None = None
    timeout: float | None = None
    last_words: tuple[str, ...] = ()
    rank: int | None = None
    at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A known difference that the recipe accepts until a date (ISO); once expired it no longer counts."""

    cause: str
    reason: str
    until: str
    expired: bool = False


@dataclass(frozen=True, kw_only=True)
class MetricDrift:
    """Where the candidate's metric falls at the end, among the reference's over several seeds.

    reference, candidate: with the recipe's own seed. values: the reference's for each seed; mean, sd: theirs (sd of a
    sample). inside: whether the candidate lies between the least and the greatest of them.
    """

    name: str
    reference: float
    candidate: float
    values: tuple[float, ...]
    mean: float
    sd: float
    inside: bool


@dataclass(frozen=True, kw_only=True)
class ParameterDrift:
    """How far apart parameters end, as the 2-norm of the difference of all of them together.

    distance: the candidate from the reference of its own seed. moved: that reference from its start.
    seeds: references of the other seeds, which start elsewhere too, from it.
    """

    distance: float
    moved: float
    seeds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Impact:
    """How far the candidate drifts from the reference by the end, against the spread over seeds.

    seeds: those of the reference, the recipe's own first. updates: how long the candidate trained.
    """

    seeds: tuple[int, ...]
    updates: int
    metrics: tuple[MetricDrift, ...]
    parameters: ParameterDrift


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """One interruption of a run, or a chain of them, and what came of the run that was resumed.

    cut: where, as --cut takes it. death: how. saved: updates that the last save before it holds; None if there is none.
    began, began_micro: updates and micro-batches of the next window that the resumed run starts with; None if it did
    not start. verdict, reason: as of a result. at: the first divergence. missing: parts that were not restored.
    """

    cut: str
    death: str
    verdict: Verdict
    saved: int | None = None
    began: int | None = None
    began_micro: int = 0
    at: At | None = None
    missing: str | None = None
    status: Literal["confirmed", "suggested"] | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What somebody else needs to see one cause.

    cause: its knob. recipe: the smallest that was found to show it, after so many reruns.
    numbers: with that recipe, the worst element of each value that differs at the first place that does.
    script: a plain PyTorch script that shows it, which was run and printed `output`. reason: why there is none.
    """

    cause: str
    recipe: Mapping[str, Any]
    reruns: int
    numbers: tuple[FirstDivergence, ...] = ()
    script: str | None = None
    output: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something about the surroundings of a run, such as a version, that was `old` and is `new`; None: absent."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A decision that a candidate made as `old` and makes as `new`; the reference's value where it had no such cause.

    confirmed: whether both are proven.
    """

    knob: str
    old: Value
    new: Value
    effect: Literal["semantic", "style"]
    confirmed: bool


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The first place whose values are not those that a golden holds. kind: "" where the whole update counts."""

    update: int
    moment: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class GoldenCheck:
    """How a run stands against the golden that guards it.

    file: the golden. recorded, reason: the day (ISO) and the reason of its last entry.
    moved: what is not as it was. `unknown`: the reference moved, and nothing that is known of its surroundings did.
    at: where the candidate first moved. reference_at: where the reference did. None: it did not.
    facts: what differs in their surroundings. changes: decisions that differ.
    """

    file: str
    recorded: str
    reason: str
    moved: Literal["nothing", "code", "environment", "both", "task", "unknown"]
    at: Moved | None = None
    reference_at: Moved | None = None
    facts: tuple[Fact, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one command found.

    reference: task, recipe, semantics, versions. candidate: trainer, versions, environment.
    reason: why the verdict is `not_comparable`. one_sided: what only one side can have.
    between_ranks: where the candidate's ranks stand to one another otherwise than the reference's. seconds: by stage.
    impact, reproduction: None if not asked for. resumptions: what `oracle resume` tried.
    golden: how it stands against a golden, of `oracle golden check`.
    notes: sentences worth knowing whatever the verdict.
    rerun: the command that gives this result again.
    """

    command: str
    verdict: Verdict
    policy: str
    passed: bool
    reference: Mapping[str, Any]
    candidate: Mapping[str, Any]
    compared: Compared
    rerun: str
    reason: str | None = None
    self_check: SelfCheck | None = None
    candidate_outcome: CandidateOutcome | None = None
    first_divergence: FirstDivergence | None = None
    site: Site | None = None
    causes: tuple[Cause, ...] = ()
    unexplained: tuple[Unexplained, ...] = ()
    latent: tuple[Latent, ...] = ()
    one_sided: tuple[OneSided, ...] = ()
    between_ranks: tuple[BetweenRanks, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    impact: Impact | None = None
    reproduction: Reproduction | None = None
    resumptions: tuple[Resumption, ...] = ()
    golden: GoldenCheck | None = None
    notes: tuple[str, ...] = ()
    replays: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def exit_code(self) -> int:
        """0 passed, 1 diverged or rounding that the policy refuses, 3 nothing was decided."""
        if self.verdict in ("nondeterministic", "not_comparable"):
            return 3
        return 0 if self.passed else 1

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict, `schema` first."""
        plain = encode(self)
        return {"schema": plain.pop("schema"), **plain}

    def to_json(self) -> str:
        """The text that `--json` writes: the same result gives the same text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Result:
        """The result that `to_dict` was asked of.

        Raises:
            ResultError: another schema version, a field too many, missing or of the wrong type.
        """
        if not isinstance(plain, Mapping) or plain.get("schema") != SCHEMA:
            found = plain.get("schema", "none") if isinstance(plain, Mapping) else type(plain).__name__
            raise ResultError(f"a result of schema {SCHEMA} was expected, found {found}")
        return decode(cls, plain, "result")

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that `to_json` was asked of. Raises ResultError as `from_dict` does, and for what is no JSON."""
        try:
            plain = json.loads(text)
        except json.JSONDecodeError as error:
            raise ResultError(f"a result in JSON was expected, found {error}") from error
        return cls.from_dict(plain)

    def write(self, path: str | Path) -> None:
        """Write the JSON, whole or not at all. Raises OutputError."""
        write_text(path, self.to_json())

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """The result in a file. Raises OSError, and ResultError as `from_json` does."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def write_text(path: str | Path, text: str) -> None:
    """Write a file whole or not at all: under another name in the same folder first, then renamed.

    Raises:
        OutputError: it could not be written. What stood there before still stands.
    """
    path = Path(os.path.realpath(path))
    temporary = None
    try:
        if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/stdout, is not to be replaced
            path.write_text(text, encoding="utf-8")
            return
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        reason = error.strerror or error
        raise OutputError(f"cannot write {path}: {reason}: name a file in a writable folder with room left") from error


def encode(value: Any) -> Any:
    """Dataclasses, mappings and sequences as plain JSON data."""
    if dataclasses.is_dataclass(value):
        return {item.name: encode(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def decode(expected: Any, value: Any, where: str) -> Any:
    """The value of type `expected` that `encode` made plain."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if dataclasses.is_dataclass(expected):
        return _decode_dataclass(expected, value, where)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (expected,) = (argument for argument in arguments if argument is not type(None))
        return decode(expected, value, where)
    if origin is Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {key: decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if expected is Any:
        return _INFINITE.get(value, value) if isinstance(value, str) else value
    if expected is float and type(value) in (int, float):
        return float(value)
    if expected is float and isinstance(value, str) and value in _INFINITE:
        return _INFINITE[value]
    if isinstance(expected, type) and type(value) is expected:
        return value
    choices = (
        f"one of {', '.join(map(str, arguments))}" if origin is Literal else getattr(expected, "__name__", expected)
    )
    raise ResultError(f"{where}: {choices} was expected, found {value!r}")


def _decode_dataclass(expected: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise ResultError(f"{where}: a table was expected, found {value!r}")
    kinds = typing.get_type_hints(expected)
    if unknown := sorted(set(value) - set(kinds)):
        raise ResultError(f"{where}: unknown: {', '.join(unknown)}")
    needed = {item.name for item in dataclasses.fields(expected) if _has_no_default(item)}
    if missing := sorted(needed - set(value)):
        raise ResultError(f"{where}: missing: {', '.join(missing)}")
    return expected(**{name: decode(kinds[name], item, f"{where}.{name}") for name, item in value.items()})


def _has_no_default(item: dataclasses.Field) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
