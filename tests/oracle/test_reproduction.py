"""What `--markdown` writes for a maintainer: a smaller recipe, numbers, and a script that was run."""

from __future__ import annotations

import json
import subprocess
import tomllib

import pytest

from oracle import environment, processes, reproduction
from oracle.check import Request
from oracle.cli import main
from oracle.errors import OracleError
from oracle.reproduction import BLOCKED
from oracle.result import Reproduction
from oracle.smallest import Smallest
from reference_loop.recipe import from_dict


def between(report, start, end="```"):
    """The lines of a block of a report."""
    return report.split(start + "\n", 1)[1].split("\n" + end, 1)[0] + "\n"


def run(script, tmp_path, *requirements):
    """Run a script where the requirements can be imported and nothing of ours."""
    place = environment.prepare(requirements)
    path = tmp_path / "script.py"
    path.write_text(script)
    return subprocess.run(
        [place.python, "-c", BLOCKED, str(path)], env=processes.pinned(1, place.layer), cwd=tmp_path,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def reported(tmp_path, *arguments):
    """The report and the reproduction of a check."""
    files = {kind: tmp_path / f"result.{kind}" for kind in ("markdown", "json")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    assert main(["check", *arguments, *options]) == 1
    return files["markdown"].read_text(), json.loads(files["json"].read_text())["reproduction"]


def test_a_report_on_an_in_house_trainer_is_complete(tmp_path):
    trainer = "fixtures/zoo/a_tail_divided_by_k.py:Trainer"
    report, found = reported(tmp_path, "ragged_tail", "--trainer", trainer, "--reruns", "2")
    assert (found["cause"], found["reruns"], found["reason"]) == ("accumulation.tail_divisor", 2, None)
    assert found["numbers"][0]["candidate"] * 4 == found["numbers"][0]["reference"]
    assert from_dict(tomllib.loads(between(report, "```toml"))) == from_dict(found["recipe"])
    assert "| gradient of 0.weight | (0, 0) |" in report
    assert found["output"].strip() in report
    script = between(report, "```python")
    assert script == found["script"]
    assert run(script, tmp_path).stdout == found["output"]


def test_a_match_is_not_reproduced(tmp_path):
    report = tmp_path / "report.md"
    arguments = ["check", "ragged_tail", "--trainer", "fixtures/trainers/healthy.py:Healthy", "--markdown", str(report)]
    assert main(arguments) == 0
    assert "Smallest recipe" not in report.read_text()


@pytest.mark.slow
def test_a_report_on_accelerate_has_its_script(tmp_path):
    report, found = reported(tmp_path, "ragged_tail", "--trainer", "accelerate", "--set", "log.every=1")
    assert found["recipe"].get("log") is None
    assert found["recipe"]["updates"] == 2
    script = between(report, "```python")
    assert "accelerate.Accelerator(" in script
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "first in gradient of 0.weight" in done.stdout


@pytest.mark.trainers
@pytest.mark.parametrize(
    "version, task, sets, knob",
    [
        ("4.54.0", "ragged_tail", [], "accumulation.tail_divisor"),
        ("4.46.3", "regression", ["clip.max_norm=inf"], "accumulation.normalise"),
        ("4.57.6", "regression", [], "hyperparameter.max_norm"),
    ],
)
def test_a_report_on_transformers_has_its_script(tmp_path, version, task, sets, knob):
    requirement = f"transformers=={version}"
    options = [word for one in sets for word in ("--set", one)]
    report, found = reported(tmp_path, task, "--trainer", "transformers", "--with", requirement, *options)
    assert (found["cause"], found["reason"]) == (knob, None)
    assert f"transformers {version}" in report
    script = between(report, "```python")
    assert f"pip install torch=={found['script'].split('torch==')[1].split()[0]} {requirement}" in script
    done = run(script, tmp_path, requirement)
    assert done.returncode == 0, done.stderr
    assert "bit for bit" in done.stdout


@pytest.fixture
def diverged(samples):
    """A request with a result that is to be reproduced."""
    recipe = from_dict({"epochs": 2})
    return Request(task="ragged_tail", trainer="accelerate", recipe=recipe), samples["diverged"]


def test_a_smaller_recipe_that_does_not_hold_is_given_up_for_the_first_one(diverged, monkeypatch):
    request, result = diverged
    small = from_dict({"updates": 1})
    asked = []

    def shown(request, cause, reruns, say):
        asked.append((request.recipe, reruns))
        return None if request.recipe == small else Reproduction(cause=cause.knob, recipe={}, reruns=reruns)

    monkeypatch.setattr(reproduction, "smallest", lambda *given: Smallest(recipe=small, reruns=7))
    monkeypatch.setattr(reproduction, "_shown", shown)
    assert reproduction.reproduce(request, result).reruns == 0
    assert asked == [(small, 7), (request.recipe, 0)]


def test_what_cannot_be_reproduced_says_why_and_costs_no_result(diverged, monkeypatch):
    request, result = diverged

    def fails(*given):
        raise OracleError("no room left")

    monkeypatch.setattr(reproduction, "smallest", fails)
    assert reproduction.reproduce(request, result).reason == "no room left"


@pytest.mark.parametrize("name", ["match", "rounding", "suggested", "unexplained", "nondeterministic"])
def test_only_a_confirmed_semantic_cause_is_reproduced(samples, diverged, name):
    assert reproduction.reproduce(diverged[0], samples[name]) is None
