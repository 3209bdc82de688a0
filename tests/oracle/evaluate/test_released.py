"""What is known of released trainers comes out of an evaluation by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.evaluate import archive, frame, scenario
from oracle.evaluate.schema import Evaluation, Setting
from oracle.report import evaluations
from oracle.tasks import fixtures


def evaluated(folder: Path, trainer: str, *requirements: str) -> Evaluation:
    asked = frame.Asked(
        trainer=trainer,
        scenario=scenario.load("research"),
        folder=folder,
        requirements=requirements,
        dimensions=frame.dimensions(("functional", "semantic")),
    )
    found = frame.evaluate(asked)
    archive.seal(folder, found, evaluations.markdown(found))
    assert archive.verify(folder) == []
    return found


def acting(found: Evaluation) -> dict[str, Setting]:
    row = found.row("semantic.hidden")
    assert row is not None
    return {setting.name: setting for setting in row.unset}


def precisions(found: Evaluation) -> dict[str, str]:
    row = found.row("functional.mixed_precision")
    assert row is not None
    return dict(row.details)


@pytest.mark.sweep
def test_accelerates_ragged_tail_and_its_silent_float32(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "accelerate")
    gradients = found.row("semantic.gradients")
    assert gradients is not None and gradients.status == "fail"
    assert [(one.name, one.acts) for one in gradients.unset] == [("accumulation.tail_divisor", "configured")]
    assert precisions(found) == {"bfloat16": "bfloat16", "float16": "float32"}


@pytest.mark.trainers
@pytest.mark.sweep
def test_the_clip_of_transformers_that_nobody_asked_for(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "transformers", "transformers==5.24.0")
    clip = acting(found)["hyperparameter.max_norm"]
    assert (clip.asked, clip.acts, clip.argument) == ("none", "1", "TrainingArguments.max_grad_norm")
    assert precisions(found)["float16"] == "float32"
    assert found.row("semantic.gradients").status == "pass"  # type: ignore[union-attr]


@pytest.mark.trainers
@pytest.mark.sweep
def test_lightnings_unit_of_the_schedule_and_its_float16(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "lightning", "lightning==2.6.6")
    units = found.row("semantic.units")
    assert units is not None and units.details["schedule"] == "epoch"
    assert precisions(found)["float16"] == "bfloat16"


@pytest.mark.sweep
def test_the_habits_of_a_house_come_out(tmp_path: Path) -> None:
    found = evaluated(tmp_path, f"{fixtures()}/trainers/house.py:House")
    settings = acting(found)
    assert (settings["hyperparameter.max_norm"].asked, settings["hyperparameter.max_norm"].acts) == ("none", "1")
    assert settings["accumulation.tail_divisor"].acts == "configured"
    resumed = found.row("functional.resume")
    assert resumed is not None and resumed.status == "fail" and "cursor,rng" in resumed.says
    assert precisions(found) == {"bfloat16": "bfloat16", "float16": "float16"}
