"""A smaller recipe is kept only while it shows the same cause, and the search for it is bounded."""

from __future__ import annotations

import pytest

from oracle.check import Request, check
from oracle.replays import Server
from oracle.smallest import _Search
from reference_loop.recipe import load

RECIPE = ["epochs=3", "log.every=1", "evaluate.every=2", "schedule.name=linear", "optimizer.name=adamw"]


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """The search for a smaller recipe that shows the first cause of a specimen."""
    server = Server(tmp_path_factory.mktemp("server"))

    def search(name, most=12, recipe=RECIPE):
        asked = load("fixtures/recipes/ragged_tail.toml", recipe)
        trainer = f"fixtures/zoo/{name}.py:Trainer"
        request = Request(task="ragged_tail", trainer=trainer, recipe=asked, timeout=30.0, remedies=False)
        result = check(request, server=server)
        found = _Search(request, result.causes[0], most, lambda words: None, server, result)
        found.shrink()
        return found

    yield search
    server.close()


def test_everything_that_the_cause_does_not_need_is_left_out(search):
    found = search("a_tail_divided_by_k")
    recipe = found.recipe
    assert (recipe.log, recipe.evaluate, recipe.schedule, recipe.epochs, recipe.updates) == (None, None, None, None, 2)
    assert (recipe.optimizer.name, recipe.accumulation, recipe.batch_size) == ("sgd", 4, 2)
    assert [cause.knob for cause in found.result.causes] == ["accumulation.tail_divisor"]
    assert found.reruns <= 12


def test_a_window_shrinks_where_the_cause_is_not_about_its_end(search):
    found = search("a_undivided")
    assert (found.recipe.updates, found.recipe.accumulation, found.recipe.batch_size) == (1, 2, 1)


@pytest.mark.slow
def test_a_feature_that_the_cause_needs_stays(search):
    found = search("c_steps_before_the_optimizer")
    assert found.recipe.schedule is not None
    assert (found.recipe.log, found.recipe.evaluate, found.recipe.optimizer.name) == (None, None, "sgd")
    assert found.result.causes[0].knob == "schedule.order"


def test_the_search_ends_where_its_checks_are_spent(search):
    found = search("a_tail_divided_by_k", most=1)
    assert found.reruns == 1
    found = search("a_tail_divided_by_k", most=0)
    assert found.reruns == 0
    assert found.recipe.epochs == 3
