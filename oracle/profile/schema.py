"""What a profile holds; its JSON is these fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from oracle.errors import OracleError

SCHEMA = 2

Status = Literal["confirmed", "depends", "undetermined"]
Kind = Literal["default", "argument", "variable", "loop", "hidden"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a value comes from.

    kind: `default`: an argument's documented default. `argument`: one that the adapter passes, because the recipe
        states it. `variable`: an environment variable. `loop`: the training loop that a user writes, as the trainer's
        documentation has it. `hidden`: the trainer's code, and no argument.
    name: the argument, "Class.argument", or the variable. value: what it is, as Python writes it.
    """

    kind: Kind
    name: str | None = None
    value: str | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of one knob.

    asked: the value that the recipe asks for, where probes ask for several (a shuffle, a decoupled decay...).
    model: the kind of model that is trained, where the value is another for another kind.
    value: the trainer's; None where it is not known. probes: those that together exclude the other values.
    left: the values that nothing excludes, where they are some and not all.
    reason: why it is undetermined, or how it depends on the probe.
    """

    knob: str
    asked: str | None = None
    model: str | None = None
    value: str | None
    status: Status
    probes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    reason: str | None = None
    source: Source | None = None


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number that the trainer uses where the recipe states another, or none."""

    name: str
    recipe: Any
    trainer: Any
    source: Source | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """What was asked for and what was seen in the recorded run; the same where nothing was changed.

    subject: batch size, accumulation, precision, device, backend or sampler.
    setting: what the trainer was told besides, None for its defaults.
    """

    subject: str
    asked: str
    seen: str
    probes: tuple[str, ...]
    setting: str | None = None

    @property
    def changed(self) -> bool:
        """Whether the trainer did something else than it was asked for."""
        return self.asked != self.seen


@dataclass(frozen=True, kw_only=True)
class Move:
    """A knob that an argument or an environment variable moves.

    setting: as a user writes it. before, after: the knob's value without it and with it, each confirmed on the probe.
    """

    setting: str
    knob: str
    before: str
    after: str
    probe: str


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A trainer's semantics.

    versions: of Python, torch and the trainer's packages.
    unexplained: probes on which no reading makes the reference equal, with the place.
    skipped: probes that could not be run, with the reason.
    """

    trainer: str
    versions: Mapping[str, str]
    knobs: tuple[Entry, ...]
    numbers: tuple[Number, ...] = ()
    changes: tuple[Change, ...] = ()
    moves: tuple[Move, ...] = ()
    unexplained: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data; `profile` says what it is."""
        return {"profile": self.trainer, **asdict(self)}

    @property
    def title(self) -> str:
        """The trainer with its packages' versions: "transformers 4.57.6 with accelerate 1.15.0"."""
        others = {k: v for k, v in self.versions.items() if k not in ("python", "torch", "numpy", self.trainer)}
        own = self.versions.get(self.trainer, "")
        beside = ", ".join(f"{name} {version}" for name, version in others.items())
        return f"{self.trainer} {own}".strip() + (f" with {beside}" if beside else "")


def is_profile(data: Any) -> bool:
    """Whether JSON data is what `Profile.to_dict` made."""
    return isinstance(data, dict) and isinstance(data.get("profile"), str) and isinstance(data.get("knobs"), list)


def from_dict(data: Mapping[str, Any]) -> Profile:
    """The inverse of `Profile.to_dict`.

    Raises:
        OracleError: it was written under another schema, or is no profile.
    """
    if data.get("schema") != SCHEMA:
        found = f"a profile of schema {data.get('schema')}, and this version reads {SCHEMA}"
        raise OracleError(f"{found}: make it again: oracle semantics")
    shapes = {"trainer": str, "versions": dict, "knobs": list, "numbers": list, "changes": list, "moves": list,
              "unexplained": dict, "skipped": dict}  # fmt: skip
    wrong = [name for name, shape in shapes.items() if not isinstance(data.get(name), shape)]
    if wrong:
        raise OracleError(f"a profile that is damaged ({', '.join(wrong)}): make it again: oracle semantics")
    try:
        return Profile(
            trainer=data["trainer"],
            versions=data["versions"],
            knobs=tuple(Entry(**_sourced(entry, "probes", "left")) for entry in data["knobs"]),
            numbers=tuple(Number(**_sourced(number)) for number in data["numbers"]),
            changes=tuple(Change(**{**change, "probes": tuple(change["probes"])}) for change in data["changes"]),
            moves=tuple(Move(**move) for move in data["moves"]),
            unexplained=data["unexplained"],
            skipped=data["skipped"],
        )
    except (KeyError, TypeError) as error:
        raise OracleError(f"a profile that is damaged ({error}): make it again: oracle semantics") from error


def _sourced(fields: Mapping[str, Any], *tuples: str) -> dict[str, Any]:
    source = fields["source"]
    more = {name: tuple(fields[name]) for name in tuples}
    return {**fields, **more, "source": None if source is None else Source(**source)}
