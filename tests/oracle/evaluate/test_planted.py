"""Planted trainers fail exactly the rows that the table names, and the reference loop none."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.evaluate import archive, frame, scenario
from oracle.evaluate.schema import DIMENSIONS, Evaluation
from oracle.report import evaluations
from oracle.tasks import fixtures

TRAINED = ("functional", "semantic", "consistency")
FAILS: dict[str, set[str]] = {
    "LogsMicroSteps": {"functional.logging", "semantic.configuration", "semantic.logged_step"},
    "HidesAClip": {"semantic.configuration", "semantic.hidden"},
    "HalvesItsBatch": {
        "functional.own_data", "functional.distributed", "semantic.configuration", "semantic.gradients",
        "semantic.hidden", "semantic.units", "consistency.one_at_a_time", "consistency.same_seed",
    },
    "Shifts": {"functional.distributed", "consistency.one_at_a_time", "consistency.same_seed"},
    "ShiftsAtRandom": {"consistency.repeats"},
    "UnitUnknown": {"functional.resume", "semantic.configuration", "semantic.rates", "semantic.units"},
}  # fmt: skip
"""What each of `fixtures/trainers/planted.py` fails, and nothing else, decided by what is planted.

A fault that no knob explains leaves a configuration that is not known. One that shows in every training
shows with two ranks, too.
"""

UNTOLD: dict[str, set[str]] = {
    "HalvesItsBatch": {"consistency.several_seeds"},
    "Shifts": {"consistency.several_seeds"},
    "ShiftsAtRandom": {
        "functional.distributed", "functional.mixed_precision", "consistency.one_at_a_time",
        "consistency.same_seed", "consistency.several_seeds",
    },
}  # fmt: skip
"""Rows that cannot tell, because something else must be mended first."""

BUSY = {"functional.throughput"}
"""A row that cannot tell where the processors have other work; `test_throughput.py` tests it."""

TIMED: dict[str, set[str]] = {"Slow": {"performance.time"}, "Leaks": {"performance.growth"}}


def evaluated(folder: Path, trainer: str, *dimensions: str) -> Evaluation:
    asked = frame.Asked(
        trainer=trainer,
        scenario=scenario.load("research"),
        folder=folder,
        dimensions=frame.dimensions(dimensions),
        command=f"oracle evaluate --trainer {trainer} --scenario research",
    )
    found = frame.evaluate(asked)
    archive.seal(folder, found, evaluations.markdown(found))
    return found


def planted(name: str) -> str:
    return f"{fixtures()}/trainers/planted.py:{name}"


def failed(found: Evaluation) -> set[str]:
    return {row.name for row in found.rows if row.status == "fail"}


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAILS)
def test_a_planted_trainer_fails_exactly_the_rows_that_are_named(name: str, tmp_path: Path) -> None:
    found = evaluated(tmp_path, planted(name), *TRAINED)
    assert failed(found) == FAILS[name]
    unknown = {row.name for row in found.rows if row.status in ("cannot_tell", "not_run")}
    assert unknown <= UNTOLD.get(name, set()) | BUSY
    assert archive.verify(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMED)
def test_a_planted_cost_fails_its_row_alone(name: str, tmp_path: Path) -> None:
    assert failed(evaluated(tmp_path, planted(name), "performance")) == TIMED[name]


@pytest.mark.sweep
def test_the_reference_loop_is_clean_in_every_row(tmp_path: Path) -> None:
    trainer = f"{fixtures()}/trainers/loop.py:Loop"
    found = evaluated(tmp_path, trainer, *DIMENSIONS)
    busy = {row.name for row in found.rows if row.status == "cannot_tell"} & BUSY
    assert {row.name: row.says for row in found.rows if row.status != "pass" and row.name not in busy} == {}
    assert all((tmp_path / name).is_file() for row in found.rows for name in row.artifacts)
    assert all(row.artifacts for row in found.rows)
    again = evaluated(tmp_path, trainer, *DIMENSIONS)
    assert again.conclusions == found.conclusions
