"""Impact: how far a difference carries, against what another seed does."""

from __future__ import annotations

import math

import pytest

from oracle.check import Request, check
from oracle.impact import _drift
from oracle.replays import Server
from oracle.report import html, markdown, text
from reference_loop.recipe import load

ZOO = "fixtures/zoo"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))

    def run(trainer, task="ragged_tail", seeds=5):
        recipe = load("fixtures/recipes/ragged_tail.toml", ["updates=4"])
        request = Request(task=task, trainer=trainer, recipe=recipe, seeds=seeds, timeout=30.0)
        return check(request, server=server)

    yield run
    server.close()


def test_a_fault_drifts_and_is_held_against_the_spread_over_seeds(run):
    result = run(f"{ZOO}/a_undivided.py:Trainer", seeds=6)
    impact = result.impact
    assert impact.seeds == (0, 1, 2, 3, 4, 5)
    assert impact.updates == 4
    assert [drift.name for drift in impact.metrics] == ["loss", "absolute"]
    for drift in impact.metrics:
        assert len(drift.values) == 6
        assert drift.reference == drift.values[0] != drift.candidate
        assert math.isclose(drift.mean, sum(drift.values) / 6)
        assert drift.inside == (min(drift.values) <= drift.candidate <= max(drift.values))
    assert impact.parameters.distance > 0
    assert impact.parameters.moved > 0
    assert len(impact.parameters.seeds) == 5
    for report in (text, markdown, html):
        assert "sd from their mean" in report.render(result)


def test_a_healthy_trainer_does_not_drift(run):
    impact = run("fixtures/trainers/healthy.py:Healthy").impact
    assert impact.parameters.distance == 0
    assert all(drift.candidate == drift.reference and drift.inside for drift in impact.metrics)


def test_the_seed_is_the_only_thing_that_the_spread_is_over(run):
    impact = run("fixtures/trainers/healthy.py:Healthy").impact
    assert len(set(impact.metrics[0].values)) == 5


def test_a_task_without_metrics_is_measured_by_its_training_loss(run, tmp_path, root):
    source = (root / "fixtures/tasks/ragged_tail.py").read_text()
    task = tmp_path / "task.py"
    task.write_text(source.replace(", eval_data=eval_data, metrics=metrics", ""))
    (drift,) = run("fixtures/trainers/healthy.py:Healthy", task=str(task)).impact.metrics
    assert drift.name == "training loss"
    assert drift.candidate == drift.reference


@pytest.mark.parametrize(
    "name, words",
    [
        ("raises:Raises", "did not train to its end"),
        ("differs_from_itself:DiffersFromItself", "does not repeat itself"),
    ],
)
def test_no_impact_is_claimed_of_a_run_that_shows_none(run, name, words):
    file, _, kind = name.partition(":")
    result = run(f"fixtures/trainers/{file}.py:{kind}")
    assert result.impact is None
    assert any("impact is not known" in note and words in note for note in result.notes)


def test_nan_is_never_inside():
    assert not _drift("loss", [1.0, 2.0], math.nan).inside
    assert not _drift("loss", [1.0, math.nan], 1.0).inside
