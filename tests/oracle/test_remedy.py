"""Remedies: only an argument whose rerun restores the reference is called one."""

from __future__ import annotations

import textwrap

import pytest

from oracle.check import Request, check
from oracle.remedy import written
from oracle.replays import Server
from oracle.report import text
from oracle.trainers import TrainerError, stated_remedies
from reference_loop.recipe import load

TRAINER = """
    class Trainer:
        remedies = {REMEDIES}

        def __init__(self, divide_by="configured", rate=2.0, extra=0.0):
            self.divide_by, self.rate, self.extra = divide_by, rate, extra

        def train(self, job):
            model = job.model()
            optimizer = job.optimizer(model)
            for group in optimizer.param_groups:
                group["lr"] *= self.rate
            window = job.recipe.accumulation
            for epoch in range(job.recipe.epochs):
                batches = list(job.loader())
                for i, batch in enumerate(batches):
                    held = min(window, len(batches) - i // window * window)
                    loss = job.loss(model, batch) / (held if self.divide_by == "held" else window)
                    loss.backward()
                    if (i + 1) % window == 0 or i + 1 == len(batches):
                        model[0].weight.grad += self.extra
                        optimizer.step()
                        optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def remedied(server, tmp_path):
    """The remedies of the causes that are found in a trainer which states these remedies, by knob."""

    def run(remedies, old="", new=""):
        path = tmp_path / "trainer.py"
        path.write_text(textwrap.dedent(TRAINER.replace("{REMEDIES}", repr(remedies)).replace(old, new)))
        recipe = load("fixtures/recipes/ragged_tail.toml")
        request = Request(task="ragged_tail", trainer=f"{path}:Trainer", recipe=recipe, timeout=20.0)
        result = check(request, server=server)
        return {cause.knob: cause.remedy for cause in result.causes}, result

    return run


BOTH = {"accumulation.tail_divisor": {"divide_by": "held"}, "hyperparameter.lr": {"rate": 1.0}}


def test_an_argument_that_restores_the_meaning_is_verified_beside_another_cause(remedied):
    found, result = remedied(BOTH)
    assert found == {
        "hyperparameter.lr": "Trainer(rate=1.0), verified by a rerun",
        "accumulation.tail_divisor": "Trainer(divide_by='held'), verified by a rerun",
    }
    assert "Remedy: Trainer(rate=1.0), verified by a rerun" in text.render(result)


def test_an_argument_that_restores_nothing_is_no_remedy(remedied):
    found, _ = remedied({"accumulation.tail_divisor": {"divide_by": "configured"}})
    assert found["accumulation.tail_divisor"].startswith(
        "none known; Trainer(divide_by='configured') was tried: the rerun still differs, first at update 1, consume"
    )


def test_an_argument_that_brings_another_difference_is_no_remedy(remedied):
    found, _ = remedied({"accumulation.tail_divisor": {"divide_by": "held", "extra": 1.0}})
    assert "was tried: the rerun still differs, first at update 0, consume" in found["accumulation.tail_divisor"]


def test_an_argument_that_the_trainer_does_not_take_is_no_remedy(remedied):
    found, _ = remedied({"accumulation.tail_divisor": {"nonsense": 1}})
    assert "none known; Trainer(nonsense=1) was tried" in found["accumulation.tail_divisor"]


def test_one_argument_may_remedy_two_causes(remedied):
    both = {"divide_by": "held", "rate": 1.0}
    found, _ = remedied({"accumulation.tail_divisor": both, "hyperparameter.lr": both})
    assert all(remedy.endswith("verified by a rerun") for remedy in found.values())
    assert len(found) == 2


def test_a_remedy_is_stated_for_the_value_that_it_restores(remedied):
    found, _ = remedied({"accumulation.tail_divisor = configured": {"divide_by": "configured"}})
    assert found["accumulation.tail_divisor"] == "none known"
    found, _ = remedied({"accumulation.tail_divisor = actual": {"divide_by": "held"}})
    assert found["accumulation.tail_divisor"] == "Trainer(divide_by='held'), verified by a rerun"


def test_nothing_is_looked_for_where_the_trainer_states_nothing(remedied):
    found, result = remedied({})
    assert set(found.values()) == {None}
    assert "Remedy" not in text.render(result)


def test_behind_an_unexplained_difference_no_remedy_is_proven(remedied):
    found, result = remedied(BOTH, "extra=0.0", "extra=1.0")
    assert result.unexplained
    assert "verified by a rerun" not in str(found.get("accumulation.tail_divisor"))


def test_arguments_are_written_as_a_user_writes_them():
    assert written({"A.x": "1", "A.y": None, "B.z": "<(optimizer, None)>"}, "file.py:C") == (
        "A(x='1', y=None), B(z=(optimizer, None))"
    )
    assert written({"x": 1}, "/a/file.py:Mine") == "Mine(x=1)"


@pytest.mark.parametrize("remedies", [["knob"], {"knob": 1}, {"knob": {"argument": object()}}])
def test_remedies_of_another_form_are_refused(remedies):
    class Trainer:
        def train(self, job):
            pass

    Trainer.remedies = remedies
    with pytest.raises(TrainerError, match="remedies"):
        stated_remedies(Trainer())
