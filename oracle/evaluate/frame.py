"""`oracle evaluate` on one page: fix the conditions, run what checks need in the method's order, judge, conclude."""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle import __version__, environment, trainers
from oracle.evaluate import archive, check, conclusions, conditions
from oracle.evaluate.check import Check
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.record import Record
from oracle.evaluate.scenario import Scenario
from oracle.evaluate.schema import Evaluation, Observation, Row
from oracle.evaluate.session import Session, baseline
from oracle.replays import Server
from oracle.result import encode, write_text

SHARE = 0.85  # of a budget that is laid out beforehand; the rest is for a slower machine


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to evaluate.

    dimensions: those whose checks are made. budget: minutes; None for no limit. folder: of the record.
    """

    trainer: str
    scenario: Scenario
    folder: Path
    requirements: tuple[str, ...] = ()
    python: str | None = None
    dimensions: tuple[str, ...]
    budget: float | None = None
    observations: tuple[Observation, ...] = ()
    command: str = ""


def evaluate(asked: Asked, progress: Callable[[str], None] = lambda words: None) -> Evaluation:
    """Evaluate a trainer; what an interrupted evaluation in the same folder ran already is not run again.

    Raises:
        OracleError: the trainer, its environment or the folder cannot be used, or the folder holds something else.
    """
    started = time.monotonic()
    place = environment.prepare(asked.requirements, python=asked.python, say=progress)
    record = Record(asked.folder)
    fixed = conditions.surroundings(place, asked.scenario, asked.folder, baseline())
    lasting = {key: value for key, value in fixed.items() if key != "permissions"}
    record.begin({"trainer": asked.trainer, "source": _digest(asked.trainer), "scenario": asked.scenario, **lasting})
    until = None if asked.budget is None else started + asked.budget * 60
    with tempfile.TemporaryDirectory(prefix="oracle-", ignore_cleanup_errors=True) as scratch:
        imports = trainers.imports(asked.trainer)
        server = Server(Path(scratch), imports=imports, python=place.python, layer=place.layer)
        try:
            session = Session(
                asked.trainer, asked.requirements, asked.python, place, server, Path(scratch),
                asked.folder / "traces", progress, until,
            )  # fmt: skip
            evidence = Evidence(record, asked.scenario, fixed, session)
            rows, left_out = _rows(asked, evidence, until, progress)
        finally:
            server.close()
    title = titled(asked.trainer, record)
    found = Evaluation(
        trainer=asked.trainer,
        title=title,
        scenario=encode(asked.scenario),
        conditions=evidence.conditions,
        surroundings=fixed,
        rows=tuple(rows),
        left_out=left_out,
        observations=asked.observations,
        conclusions=conclusions.conclude(
            title, asked.scenario, rows, left_out, asked.observations, conditions.machine(fixed)
        ),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        seconds=round(time.monotonic() - started, 1),
        command=asked.command,
        oracle=__version__,
    )
    write_text(asked.folder / archive.EVALUATION, found.to_json())
    return found


def _rows(
    asked: Asked, evidence: Evidence, until: float | None, progress: Callable[[str], None]
) -> tuple[list[Row], dict[str, str]]:
    """A row for each check that is made, and the reason for each that is left out."""
    checks = [one for one in check.every() if one.about.dimension in asked.dimensions]
    chosen, left_out = laid_out(checks, asked, evidence)
    rows = []
    for one in chosen:
        missing = _missing(one, asked.scenario, evidence)
        needed = sum(evidence.experiments[name].seconds for name in missing)
        if until is not None and missing and time.monotonic() + needed > until:
            left_out[one.full_name] = f"left out: the budget of {asked.budget:g} minutes was spent before it"
            continue
        progress(f"check: {one.full_name}")
        rows.append(one.row(evidence))
    return rows, left_out


def laid_out(checks: Sequence[Check], asked: Asked, evidence: Evidence) -> tuple[list[Check], dict[str, str]]:
    """The checks that a budget has room for, in the method's order, and why the others have none.

    Room is given to required checks first, then by the weight of their dimension; what they take is known beforehand,
    so the same budget chooses the same checks.
    """
    if asked.budget is None:
        return list(checks), {}
    scenario = asked.scenario
    order = sorted(checks, key=lambda one: (one.full_name not in scenario.required, _weight(scenario, one)))
    left = asked.budget * 60 * SHARE
    planned: set[str] = set()
    chosen: list[Check] = []
    left_out: dict[str, str] = {}
    for one in order:
        more = [name for name in _missing(one, scenario, evidence) if name not in planned]
        seconds = sum(evidence.experiments[name].seconds for name in more)
        if seconds > left:
            left_out[one.full_name] = (
                f"left out: it takes about {seconds:.0f} s more than --budget {asked.budget:g} allows"
            )
            continue
        left -= seconds
        planned.update(more)
        chosen.append(one)
    return [one for one in checks if one in chosen], left_out


def _missing(one: Check, scenario: Scenario, evidence: Evidence) -> list[str]:
    needs = one.needs(evidence.experiments, scenario.settings.size)
    return [name for name in needs if not evidence.record.has(name)]


def _weight(scenario: Scenario, one: Check) -> int:
    return ("decides", "matters", "informs", None).index(scenario.weights.get(one.about.dimension))


def titled(trainer: str, record: Record) -> str:
    """The trainer with the versions that its runs reported."""
    versions: Mapping[str, str] = record.read("plain").get("versions", {}) if record.has("plain") else {}
    shown = [f"{name} {version}" for name, version in versions.items() if name not in ("python", "torch", "numpy")]
    own = trainer.rpartition("/")[2]
    return f"{own} ({', '.join(shown)})" if shown else own


def _digest(trainer: str) -> Any:
    """A digest of a trainer's file; of an adapter, of ours."""
    from diffs.digest import digest_bytes
    from oracle.evaluate.experiments.settings import source

    return digest_bytes(source(trainer).read_bytes(), conditions.ALGORITHM).hex()


def dimensions(asked: Collection[str]) -> tuple[str, ...]:
    """The dimensions that have checks, all of them where none is asked for."""
    known = tuple(dict.fromkeys(one.about.dimension for one in check.every()))
    return tuple(name for name in known if not asked or name in asked)
