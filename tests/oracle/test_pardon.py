"""Known differences: an entry passes exactly what it names, until its day is over, and hides nothing else."""

from __future__ import annotations

import datetime
import textwrap

import pytest

from diffs.verdict import Policy
from oracle.check import Request, check
from oracle.cli import main
from oracle.replays import Server
from oracle.report import text
from reference_loop.recipe import RecipeError, load

LOOP = """
    class Trainer:
        def train(self, job):
            model = job.model()
            optimizer = job.optimizer(model)
            window = job.recipe.accumulation
            for group in optimizer.param_groups:
                group["lr"] *= RATE
            for epoch in range(job.recipe.epochs):
                batches = list(job.loader())
                for i, batch in enumerate(batches):
                    held = min(window, len(batches) - i // window * window)
                    (job.loss(model, batch) / (DIVISOR)).backward()
                    if (i + 1) % window == 0 or i + 1 == len(batches):
                        EXTRA
                        optimizer.step()
                        optimizer.zero_grad()
"""
TODAY = datetime.date.today()
TAIL, RATE = "accumulation.tail_divisor", "hyperparameter.lr"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def run(server, tmp_path):
    """Check a loop that divides by the configured count, under a recipe that accepts these causes."""

    def run(*accepted, rate="1", divisor="window", extra="pass", policy="noise", sets=()):
        path = tmp_path / "trainer.py"
        source = LOOP.replace("RATE", rate).replace("DIVISOR", divisor).replace("EXTRA", extra)
        path.write_text(textwrap.dedent(source))
        entries = ", ".join(f"{{cause = '{cause}', reason = 'wanted', until = {day}}}" for cause, day in accepted)
        recipe = load("fixtures/recipes/ragged_tail.toml", [f"accept=[{entries}]", *sets])
        request = Request(
            task="ragged_tail", trainer=f"{path}:Trainer", recipe=recipe, policy=Policy.parse(policy), timeout=20.0
        )
        return check(request, server=server)

    return run


def test_an_accepted_cause_passes_and_is_still_reported(run):
    result = run((TAIL, TODAY + datetime.timedelta(days=30)))
    assert (result.verdict, result.passed, result.exit_code) == ("diverged", True, 0)
    assert [cause.knob for cause in result.causes] == [TAIL]
    assert f"Accepted: {TAIL} until" in text.render(result)


def test_a_cause_is_accepted_on_its_last_day_and_fails_on_the_next(run):
    assert run((TAIL, TODAY)).exit_code == 0
    result = run((TAIL, TODAY - datetime.timedelta(days=1)))
    assert (result.passed, result.exit_code) == (False, 1)
    assert f"No longer accepted: {TAIL}" in text.render(result)


def test_an_accepted_cause_does_not_cover_another_one(run):
    result = run((TAIL, TODAY), rate="2")
    assert {cause.knob for cause in result.causes} == {TAIL, RATE}
    assert (result.verdict, result.exit_code) == ("diverged", 1)


def test_several_causes_pass_where_each_is_accepted(run):
    assert run((TAIL, TODAY), (RATE, TODAY), rate="2").exit_code == 0
    assert run((TAIL, TODAY), (RATE, TODAY - datetime.timedelta(days=1)), rate="2").exit_code == 1


def test_an_accepted_cause_does_not_cover_what_no_knob_explains(run):
    result = run((TAIL, TODAY), extra="model[0].weight.grad[0] += 1.0")
    assert result.unexplained
    assert result.exit_code == 1


def test_an_accepted_cause_does_not_cover_a_crash(run):
    result = run((TAIL, TODAY), extra="assert epoch == 0")
    assert (result.verdict, result.exit_code) == ("diverged", 1)


def test_an_accepted_cause_that_is_not_there_is_not_listed(run):
    result = run((TAIL, TODAY), divisor="held")
    assert (result.verdict, result.accepted) == ("match", ())


def test_an_accepted_style_passes_where_the_policy_refuses_rounding(run):
    by_three = {"divisor": "1", "sets": ["accumulation=3"]}
    divide = "[p.grad.div_(held) for p in model.parameters()]"
    refused = run(extra=divide, policy="exact", **by_three)
    assert [cause.knob for cause in refused.causes] == ["accumulation.divide"]
    assert (refused.verdict, refused.exit_code) == ("rounding", 1)
    assert run(("accumulation.divide", TODAY), extra=divide, policy="exact", **by_three).exit_code == 0
    assert run((TAIL, TODAY), extra=divide, policy="exact", **by_three).exit_code == 1


def test_what_cannot_be_a_cause_cannot_be_accepted(run):
    with pytest.raises(RecipeError, match=r"did you mean 'accumulation\.tail_divisor'"):
        run(("accumulation.tail_divisors", TODAY))


def test_a_recipe_file_accepts_on_the_command_line(tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    entry = f'[[accept]]\ncause = "accumulation.normalise"\nreason = "known"\nuntil = {TODAY}\n'
    recipe.write_text(f"epochs = 1\nbatch_size = 2\naccumulation = 8\n\n{entry}")
    arguments = ["check", "regression", "--trainer", "fixtures/zoo/a_undivided.py:Trainer", "--recipe", str(recipe)]
    assert main(arguments) == 0
    assert "Accepted: accumulation.normalise until" in capsys.readouterr().out
    recipe.write_text(recipe.read_text().replace(str(TODAY), "2020-01-01"))
    assert main(arguments) == 1
    assert "No longer accepted: accumulation.normalise until 2020-01-01: known." in capsys.readouterr().out
