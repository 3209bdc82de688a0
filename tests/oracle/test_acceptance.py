"""What the oracle must show of released trainers: the version, the place, the cause and its proof."""

from __future__ import annotations

import functools
import time

import pytest

from oracle import environment
from oracle.check import Request, check
from oracle.result import Result
from reference_loop.recipe import load

pytestmark = pytest.mark.trainers

RECIPES = "fixtures/recipes"


@functools.cache
def checked(
    task: str, trainer: str, *, version: str | None = None, recipe: str = "", sets: tuple[str, ...] = ()
) -> Result:
    """The result of `oracle check`, each candidate run in a fresh process; one check serves all tests that ask for it.

    version: of transformers, in a layer; "" is the newest, None no layer at all.
    recipe: by name; the task's own by default.
    """
    requirements = () if version is None else (f"transformers=={version}" if version else "transformers",)
    asked = load(f"{RECIPES}/{recipe or task}.toml", sets)
    return check(Request(task=task, trainer=trainer, recipe=asked, requirements=requirements, timeout=300.0))


def causes(result: Result) -> list[tuple[str, object, object, str]]:
    return [(cause.knob, cause.reference, cause.candidate, cause.status) for cause in result.causes]


# The last window of an epoch: 10 samples in batches of 2, an accumulation of 4


@pytest.mark.parametrize("version", [None, "4.54.0"], ids=["accelerate", "transformers 4.54.0"])
def test_a_last_window_divided_by_the_configured_count_is_named_and_proven(version):
    result = checked("ragged_tail", "accelerate" if version is None else "transformers", version=version)
    first, site, (cause,) = result.first_divergence, result.site, result.causes
    assert (result.verdict, result.exit_code) == ("diverged", 1)
    assert (first.update, first.moment, first.kind) == (1, "consume", "gradient")  # the last update of epoch 0
    assert first.differing == first.total
    assert first.candidate * 4 == first.reference
    assert (site.update, site.micro, site.moment, site.kind) == (1, 0, "backward", "objective")
    assert causes(result) == [("accumulation.tail_divisor", "actual", "configured", "confirmed")]
    assert "candidate / reference is 1/4 in every element, exactly" in cause.evidence
    assert cause.identical_through_update == 3
    assert result.unexplained == ()


@pytest.mark.parametrize("version", ["4.57.6", ""], ids=["4.57.6", "newest"])
def test_later_versions_divide_a_last_window_by_what_it_holds(version):
    assert checked("ragged_tail", "transformers", version=version).verdict == "match"


def test_accelerate_matches_where_no_window_is_short():
    result = checked("regression", "accelerate")
    assert (result.verdict, result.exit_code, result.causes) == ("match", 0, ())


# What a gradient is divided by


def test_a_gradient_that_nobody_divides_is_k_times_the_reference():
    result = checked("regression", "transformers", version="4.46.3", sets=("clip.max_norm=inf",))
    first, (cause,) = result.first_divergence, result.causes
    assert (result.verdict, first.update, first.moment) == ("diverged", 0, "consume")
    assert first.candidate == 8 * first.reference
    assert causes(result) == [("accumulation.normalise", "micro_mean", "sum", "confirmed")]
    assert "candidate / reference is 8 in every element, exactly" in cause.evidence


def test_a_gradient_that_nobody_divides_is_found_behind_a_clip_that_hides_it():
    result = checked("regression", "transformers", version="4.46.3", sets=("clip.max_norm=1.0",))
    assert result.first_divergence.ulp < 10
    assert causes(result) == [("accumulation.normalise", "micro_mean", "sum", "confirmed")]


def test_labels_counted_before_the_shift_are_named_where_they_are_counted():
    result = checked("llama", "transformers", version="4.57.6")
    assert causes(result) == [("accumulation.units", "task", "labels", "confirmed")]
    assert checked("llama", "transformers", version="").verdict == "match"


# What nobody asked for


def test_defaults_that_nobody_asked_for_are_each_named_and_then_nothing_differs():
    result = checked("decoder", "transformers", version="", recipe="unsaid")
    assert {cause[:3] for cause in causes(result)} == {
        ("optimizer.decay_set", "all", "names"),
        ("hyperparameter.max_norm", None, 1.0),
        ("data.order", "random_sampler", "seeded_epoch"),
        ("optimizer.kernel", "loop", "fused"),
    }
    assert {cause.status for cause in result.causes} == {"confirmed"}
    assert {cause.identical_through_update for cause in result.causes} == {result.compared.updates - 1}
    assert result.unexplained == ()


@pytest.mark.parametrize(
    ("trainer", "version"), [("accelerate", None), ("transformers", "")], ids=["accelerate", "transformers"]
)
def test_float16_that_is_asked_for_and_not_used_is_named(trainer, version):
    sets = ("clip.max_norm=inf", "precision.dtype=float16")
    result = checked("regression", trainer, version=version, sets=sets)
    assert causes(result) == [("precision.compute", "as_asked", "float32", "confirmed")]


# Layers


@pytest.mark.parametrize("version", ["4.46.3", "4.54.0", "4.57.6", ""], ids=["4.46.3", "4.54.0", "4.57.6", "newest"])
def test_a_layer_holds_only_what_differs_and_is_there_at_once_the_second_time(version):
    asked = (f"transformers=={version}" if version else "transformers",)
    first = environment.prepare(asked)
    below = environment.inspect(first.python).versions
    started = time.perf_counter()
    second = environment.prepare(asked)
    assert time.perf_counter() - started < 1
    assert second.seconds == 0
    assert "transformers" in first.holds and "torch" not in first.holds
    assert {name for name, held in first.holds.items() if below.get(name) == held} == set()
    assert not list(first.layer.glob("torch"))
