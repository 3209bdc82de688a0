"""A trainer's semantics, knob by knob, each value proven on a probe that tells it from every other value.

A probe is a task and a recipe made to separate values: ragged tails, unequal labels, a clip that bites, dropout,
evaluation, a forced overflow. The candidate is explained on it as in a check. Under the reading that makes the
reference bit-identical, every other value of every knob is replayed, and excluded if it differs from the candidate. A
value is `confirmed` where the probes together exclude all others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from diffs.first import first as first_difference
from oracle import environment, trainers
from oracle.check import Case, Request, opened
from oracle.explain.engine import Explanation
from oracle.explain.standing import rules
from oracle.replays import Reading, Replay, ReplayFailed, Server
from reference_loop.plan import plan
from reference_loop.recipe import from_dict
from reference_loop.semantics import KNOBS

SCHEMA = 1

Status = Literal["confirmed", "depends", "undetermined"]

_SGD = {"name": "sgd", "lr": 0.1}
_OFF = {"max_norm": float("inf")}

PROBES: dict[str, tuple[str, dict[str, Any]]] = {
    "ragged tail": ("ragged_tail", {
        "epochs": 2, "batch_size": 2, "accumulation": 4, "optimizer": _SGD, "clip": _OFF,
        "schedule": {"name": "linear", "warmup": 1},
    }),
    "ragged tail of two": ("ragged_tail", {
        "epochs": 3, "batch_size": 2, "accumulation": 3, "optimizer": _SGD, "clip": _OFF, "log": {},
        "schedule": {"name": "linear", "warmup": 2},
    }),
    "last batch incomplete": ("ragged_tail", {
        "epochs": 2, "batch_size": 4, "accumulation": 1, "optimizer": _SGD, "clip": _OFF,
    }),
    "unequal labels": ("tokens", {"epochs": 2, "batch_size": 2, "accumulation": 3, "optimizer": _SGD, "clip": _OFF}),
    "labels of a causal model": ("llama", {
        "epochs": 1, "batch_size": 2, "accumulation": 2, "optimizer": _SGD, "clip": _OFF,
        "semantics": {"accumulation.normalise": "unit_mean"},
    }),
    "decay and a clip that bites": ("decoder", {
        "updates": 4, "batch_size": 2, "accumulation": 2, "schedule": {"name": "cosine", "warmup": 1},
        "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1}, "clip": {"max_norm": 0.05},
    }),
    "shuffled, with dropout": ("decoder", {
        "epochs": 2, "batch_size": 4, "accumulation": 1, "shuffle": True, "optimizer": _SGD, "clip": _OFF,
    }),
    "evaluation and log": ("decoder", {
        "epochs": 2, "batch_size": 2, "accumulation": 3, "optimizer": _SGD, "clip": _OFF,
        "evaluate": {"every": 1}, "log": {},
    }),
    "batch statistics": ("batchnorm", {
        "epochs": 2, "batch_size": 4, "accumulation": 1, "optimizer": _SGD, "clip": _OFF, "evaluate": {"every": 1},
    }),
    "bfloat16": ("ragged_tail", {
        "updates": 3, "batch_size": 2, "accumulation": 2, "optimizer": _SGD, "clip": _OFF,
        "precision": {"dtype": "bfloat16"},
    }),
    "float16 with an overflow": ("ragged_tail", {
        "updates": 6, "batch_size": 2, "accumulation": 2, "optimizer": _SGD, "clip": {"max_norm": 0.05},
        "precision": {"dtype": "float16"}, "scaler": {"init_scale": 2.0**24, "growth_interval": 2},
        "schedule": {"name": "linear", "warmup": 1},
    }),
    "nothing stated": ("decoder", {
        "updates": 2, "batch_size": 2, "shuffle": True, "optimizer": {"name": "adamw", "lr": 0.01},
    }),
}  # fmt: skip
"""What each probe trains: a built-in task and a recipe."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of one knob.

    asked: the value that the recipe asks for, where recipes ask for several (a shuffle, a decoupled decay...).
    value: the trainer's; None where it is not known. probes: those that exclude the other values.
    reason: why it is undetermined, or how it depends on the probe.
    """

    knob: str
    asked: str | None = None
    value: str | None
    status: Status
    probes: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A trainer's semantics.

    numbers: values that the trainer uses where the recipe states another or none: (name, recipe's value, trainer's).
    unexplained: probes on which no reading makes the reference equal, with the place.
    skipped: probes that could not be run, with the reason.
    """

    trainer: str
    versions: Mapping[str, str]
    knobs: tuple[Entry, ...]
    numbers: tuple[tuple[str, Any, Any], ...] = ()
    unexplained: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return asdict(self)


@dataclass
class Seen:
    """What one probe says of each knob: what was asked, what the trainer does, and the values that it does not have."""

    asked: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    excluded: dict[str, set[str]] = field(default_factory=dict)
    numbers: list[tuple[str, Any, Any]] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=dict)
    gap: str | None = None


def infer(
    trainer: str,
    *,
    requirements: tuple[str, ...] = (),
    python: str | None = None,
    probes: Iterable[str] = PROBES,
    timeout: float | None = 300.0,
    progress: Callable[[str], None] = lambda words: None,
) -> Profile:
    """Probe a trainer and put together what the probes prove.

    Raises:
        OracleError: the trainer or its environment cannot be used at all.
    """
    seen: dict[str, Seen] = {}
    skipped: dict[str, str] = {}
    place = environment.prepare(requirements, python=python, say=progress)
    with tempfile.TemporaryDirectory(prefix="oracle-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder), imports=trainers.imports(trainer), python=place.python, layer=place.layer)
        try:
            for name in probes:
                task, values = PROBES[name]
                request = Request(
                    task=task,
                    trainer=trainer,
                    recipe=from_dict(values),
                    requirements=requirements,
                    python=python,
                    timeout=timeout,
                )
                progress(f"probe: {name}")
                try:
                    with opened(request, lambda words: None, server) as case:
                        seen[name] = look(case)
                except ReplayFailed as error:
                    skipped[name] = str(error)
        finally:
            server.close()
    versions = next((one.versions for one in seen.values() if one.versions), {})
    return Profile(
        trainer=trainer,
        versions=versions,
        knobs=tuple(_entries(seen)),
        numbers=tuple(dict.fromkeys(number for one in seen.values() for number in one.numbers)),
        unexplained={name: one.gap for name, one in seen.items() if one.gap is not None},
        skipped=skipped,
    )


def look(case: Case) -> Seen:
    """What one candidate's run says of its semantics."""
    candidate = case.findings.candidate
    outcome = candidate.ending.outcome or {}
    seen = Seen(versions=outcome.get("versions", {}))
    if candidate.trace is None or not candidate.ended or candidate.wavers is not None:
        seen.gap = candidate.outcome.error or ("it differs from itself" if candidate.wavers else "it did not end")
        return seen
    found = case.explanation()
    if found.standing.decisive is not None or found.gaps:
        at = found.gaps[0].at.address if found.gaps else found.standing.decisive.address  # type: ignore[union-attr]
        seen.gap = f"update {at.update}, {at.moment}: {at.kind} {at.name}"
    for cause in found.causes:
        if cause.knob.startswith("hyperparameter."):
            name = cause.knob.removeprefix("hyperparameter.")
            seen.numbers.append((name, _plain(cause.reference), _plain(cause.candidate)))
    if seen.gap is None:
        _separate(case, found, seen)
    return seen


def _separate(case: Case, found: Explanation, seen: Seen) -> None:
    """Replay every other value of every knob under the understood reading."""
    reading, samples = found.reading, found.replay.samples
    now = list(plan(reading.recipe, reading.semantics, samples))
    others: list[tuple[str, str, Reading]] = []
    for name, knob in KNOBS.items():
        if name == "resume.missing":
            continue
        seen.asked[name] = case.findings.reading.semantics.value(name)
        seen.values[name] = reading.semantics.value(name)
        seen.excluded[name] = set()
        for value in knob.values:
            changed = reading.with_knob(name, value)
            if list(plan(changed.recipe, changed.semantics, samples)) != now:
                others.append((name, value, changed))
    replays = case.findings.replays.run(*(changed for _, _, changed in others))
    trace = case.findings.candidate.trace
    assert trace is not None
    for (name, value, _), replay in zip(others, replays, strict=True):
        if isinstance(replay, Replay) and first_difference(replay.trace, trace, rules(replay.trace, trace)) is not None:
            seen.excluded[name].add(value)


def _entries(seen: Mapping[str, Seen]) -> Iterator[Entry]:
    for name, knob in KNOBS.items():
        if name == "resume.missing":
            continue
        asked = dict.fromkeys(one.asked[name] for one in seen.values() if name in one.asked)
        if not asked:
            yield Entry(knob=name, value=None, status="undetermined", reason="no probe could be explained")
        for ask in asked:
            told = {probe: one for probe, one in seen.items() if one.asked.get(name) == ask}
            yield _entry(name, ask if len(asked) > 1 else None, knob.values, told)


def _entry(name: str, asked: str | None, values: tuple[str, ...], told: Mapping[str, Seen]) -> Entry:
    """What the probes that ask for the same say of a knob. A probe that excludes nothing says nothing of it."""
    telling = {probe: one for probe, one in told.items() if one.excluded[name]}
    found = dict.fromkeys(one.values[name] for one in telling.values())
    if len(found) > 1:
        words = "; ".join(f"{one.values[name]} on {probe}" for probe, one in telling.items())
        return Entry(knob=name, asked=asked, value=None, status="depends", reason=words)
    value = next(iter(found), None)
    left = [v for v in values if v != value and not any(v in one.excluded[name] for one in telling.values())]
    if value is None:
        return Entry(knob=name, asked=asked, value=None, status="undetermined", reason="no probe depends on it")
    if left:
        reason = f"no probe tells {value} from {', '.join(left)}"
        return Entry(knob=name, asked=asked, value=None, status="undetermined", reason=reason)
    return Entry(knob=name, asked=asked, value=value, status="confirmed", probes=_fewest(name, value, values, telling))


def _fewest(name: str, value: str, values: tuple[str, ...], telling: Mapping[str, Seen]) -> tuple[str, ...]:
    """Probes that together exclude all other values, each adding to those before it."""
    chosen: list[str] = []
    left = set(values) - {value}
    for probe, one in sorted(telling.items(), key=lambda item: -len(item[1].excluded[name])):
        if left & one.excluded[name]:
            chosen.append(probe)
            left -= one.excluded[name]
    return tuple(chosen)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# Reports


def lines(profile: Profile) -> Iterator[str]:
    """The profile as text: a row a knob."""
    packages = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    yield f"Semantics of {profile.trainer} ({packages})"
    yield ""
    names = {id(entry): _named(entry) for entry in profile.knobs}
    width = max(map(len, names.values()))
    for entry in profile.knobs:
        yield f"  {names[id(entry)]:<{width}}  {entry.value or '-':<16}  {entry.status:<12}  {_where(entry)}"
    if profile.numbers:
        yield ""
        yield "Numbers that the recipe does not state, or states otherwise:"
        for name, asked, used in profile.numbers:
            yield f"  {name}: recipe {_said(asked)}, trainer {_said(used)}"
    for title, rows in (("Unexplained:", profile.unexplained), ("Not probed:", profile.skipped)):
        if rows:
            yield ""
            yield title
            for probe, words in rows.items():
                yield f"  {probe}: {words}"


def markdown(profile: Profile, command: str) -> str:
    """The profile as a page."""
    packages = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    rows = [
        f"# Semantics of {profile.trainer}",
        "",
        f"Measured with {packages}. Made by `{command}`.",
        "",
        "| knob | value | status | where |",
        "|---|---|---|---|",
    ]
    for entry in profile.knobs:
        rows.append(
            f"| `{_named(entry)}` | {f'`{entry.value}`' if entry.value else ''} | {entry.status} | {_where(entry)} |"
        )
    if profile.numbers:
        rows += ["", "Numbers that the recipe does not state, or states otherwise:", ""]
        rows += [f"- `{name}`: recipe {_said(asked)}, trainer {_said(used)}" for name, asked, used in profile.numbers]
    for title, found in (("Unexplained", profile.unexplained), ("Not probed", profile.skipped)):
        if found:
            rows += ["", f"{title}:", "", *(f"- {probe}: {words}" for probe, words in found.items())]
    return "\n".join(rows) + "\n"


def _named(entry: Entry) -> str:
    return f"{entry.knob} (asked {entry.asked})" if entry.asked else entry.knob


def _where(entry: Entry) -> str:
    return entry.reason or ", ".join(entry.probes)


def _said(value: Any) -> str:
    return "none" if value is None else str(value)
