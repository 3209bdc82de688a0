"""Released trainers of other projects, interrupted and resumed: what docs/resume.md says of them is so."""

from __future__ import annotations

import pytest

from diffs.verdict import Policy
from oracle.check import Request
from oracle.resume import cuts
from oracle.resume.command import resume
from reference_loop.recipe import from_dict

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(1200)]

RECIPE = {
    "epochs": 2, "batch_size": 2, "accumulation": 2, "shuffle": True, "optimizer": {"name": "adamw", "lr": 0.02},
    "schedule": {"name": "linear", "warmup": 1}, "clip": {"max_norm": 1.0}, "checkpoint": {"every": 1},
}  # fmt: skip


def resumed(trainer, cut, *requirements, kills=0, task="decoder", **recipe):
    request = Request(
        task=task,
        trainer=trainer,
        recipe=from_dict({key: value for key, value in {**RECIPE, **recipe}.items() if value is not None}),
        requirements=requirements,
        policy=Policy.parse("exact"),
    )
    chains = None if cut == "all" else [cuts.parse(cut)]
    return resume(request, chains, kills=kills, warm=kills > 0 or cut == "all")


def missing(result):
    return [(cause.candidate, cause.status) for cause in result.causes]


@pytest.mark.sweep
@pytest.mark.parametrize("version", ["5.24.0", "4.57.6"])
def test_transformers_matches_at_every_cut_that_leaves_a_whole_save(version):
    result = resumed("transformers", "all", f"transformers=={version}")
    outcomes = {one.cut: one.verdict for one in result.resumptions}
    early = {"1", "1:save"}  # nothing was saved before
    broken = {cut for cut in outcomes if cut.endswith(":save")}  # the newest folder is not whole
    assert {outcomes[cut] for cut in outcomes.keys() - early - broken} == {"match"}
    assert {outcomes[cut] for cut in early | broken} == {"not_comparable"}


def test_accelerate_1_13_goes_on_in_another_permutation():
    result = resumed("transformers", "5", "transformers==4.57.6", "accelerate==1.13.0")
    assert (result.verdict, missing(result)) == ("diverged", [("order", "confirmed")])


def test_transformers_4_45_fails_loudly():
    result = resumed("transformers", "2:saved", "transformers==4.45.2")
    assert result.verdict == "not_comparable" and "Weights only load failed" in result.reason


def test_transformers_4_45_goes_on_one_micro_batch_late(monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    result = resumed("transformers", "2", "transformers==4.45.2", batch_size=4, epochs=4)
    (cause,) = result.causes
    assert "cursor" in cause.candidate.split(",")
    assert "the first batch is the uninterrupted run's, 1 micro-batch later" in cause.evidence
    assert any(note.startswith("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set") for note in result.notes)


def test_accelerate_needs_its_state_loaded_again_behind_the_skipped_batches(root):
    file = root / "fixtures" / "trainers" / "accelerate_resumes.py"
    recipe = {"shuffle": False, "clip": {"max_norm": float("inf")}}
    once = resumed(f"{file}:LoadsOnce", "5", **recipe)
    assert (once.verdict, missing(once)) == ("diverged", [("rng", "confirmed")])
    assert resumed(f"{file}:LoadsAgain", "5", **recipe).verdict == "match"


PLAIN = {"task": "regression", "shuffle": False, "clip": {"max_norm": float("inf")}}


def test_ignite_goes_on_at_an_epoch_s_edge_and_from_its_beginning_elsewhere():
    assert resumed("ignite", "4:saved", "pytorch-ignite==0.5.5", **PLAIN).verdict == "match"
    result = resumed("ignite", "3", "pytorch-ignite==0.5.5", **PLAIN)
    assert (result.verdict, missing(result)) == ("diverged", [("cursor", "suggested")])


def test_mmengine_refuses_its_own_checkpoint():
    result = resumed("mmengine", "4:saved", "mmengine==0.10.7", **PLAIN)
    assert result.verdict == "not_comparable" and "Weights only load failed" in result.reason


def test_mmengine_goes_on_where_it_may_unpickle_and_counts_iterations(monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    result = resumed("mmengine", "4:saved", "mmengine==0.10.7", **PLAIN, epochs=None, updates=7)
    assert result.verdict == "match"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("trainer", "requirements"),
    [("accelerate", ()), ("transformers", ("transformers==5.24.0",)), ("transformers", ("transformers==4.57.6",))],
)
def test_killed_in_a_save_they_fail_loudly(trainer, requirements):
    result = resumed(trainer, "4", *requirements, kills=50, shuffle=trainer == "transformers")
    assert {one.verdict for one in result.resumptions} == {"not_comparable"} and not result.passed
