"""The main job, end to end: verdict, place, cause and exit code for trainers of every kind."""

from __future__ import annotations

import json
import shlex
import textwrap

import pytest

from oracle.check import Request, check
from oracle.cli import main
from oracle.replays import Server
from oracle.report import html, junit, markdown, text
from oracle.result import Result
from reference_loop.recipe import from_dict, load

TRAINERS = "fixtures/trainers"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def run(server):
    """Check a trainer in warm processes."""

    def run(task, trainer, recipe=None, **more):
        if isinstance(recipe, str):
            recipe = load(recipe)
        recipe = recipe or load(f"fixtures/recipes/{task}.toml")
        return check(Request(task=task, trainer=trainer, recipe=recipe, timeout=20.0, **more), server=server)

    return run


LOOP = """
    import torch

    class Trainer:
        name = "loop"

        def train(self, job):
            model = job.model()
            optimizer = job.optimizer(model)
            scheduler = job.scheduler(optimizer)
            recipe = job.recipe
            for epoch in range(recipe.epochs):
                batches = list(job.loader())
                for i, batch in enumerate(batches):
                    left = len(batches) - i // recipe.accumulation * recipe.accumulation
                    count = min(recipe.accumulation, left)
                    (job.loss(model, batch) / count).backward()
                    if (i + 1) % recipe.accumulation == 0 or i + 1 == len(batches):
                        if recipe.clip:
                            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip.max_norm)
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
"""


@pytest.fixture
def edited(tmp_path):
    """A trainer file: the loop above with some of its text replaced."""

    def write(*edits):
        source = LOOP
        for old, new in edits:
            assert old in source
            source = source.replace(old, new)
        path = tmp_path / "trainer.py"
        path.write_text(textwrap.dedent(source))
        return f"{path}:Trainer"

    return write


def causes(result):
    return [(cause.knob, cause.candidate, cause.status) for cause in result.causes]


# Healthy trainers


@pytest.mark.parametrize("task", ["regression", "ragged_tail", "tokens", "decoder", "batchnorm"])
def test_a_healthy_loop_matches_on_every_task(run, task):
    result = run(task, f"{TRAINERS}/healthy.py:Healthy")
    assert (result.verdict, result.exit_code, result.causes) == ("match", 0, ())
    assert result.compared.addresses > 100
    assert result.self_check.identical


def test_dividing_after_backward_is_a_style_and_passes(run):
    recipe = load("fixtures/recipes/ragged_tail.toml", ["accumulation=3"])
    result = run("ragged_tail", f"{TRAINERS}/divides_after_backward.py:DividesAfterBackward", recipe)
    assert (result.verdict, result.exit_code) == ("rounding", 0)
    assert causes(result) == [("accumulation.divide", "gradient", "confirmed")]
    assert result.causes[0].effect == "style"


def test_rounding_fails_where_the_policy_is_exact(run):
    from diffs.verdict import Policy

    recipe = load("fixtures/recipes/ragged_tail.toml", ["accumulation=3"])
    trainer = f"{TRAINERS}/divides_after_backward.py:DividesAfterBackward"
    result = run("ragged_tail", trainer, recipe, policy=Policy.parse("exact"))
    assert (result.verdict, result.exit_code) == ("rounding", 1)


# Faults


def test_a_wrong_divisor_of_the_last_window_is_found_and_proven(run, edited):
    result = run("ragged_tail", edited(("min(recipe.accumulation, left)", "recipe.accumulation")))
    first, site, (cause,) = result.first_divergence, result.site, result.causes
    assert (result.verdict, result.exit_code) == ("diverged", 1)
    assert (first.update, first.moment, first.kind) == (1, "consume", "gradient")
    assert first.differing == first.total == 32
    assert (site.update, site.micro, site.moment, site.kind) == (1, 0, "backward", "objective")
    assert {"batch", "parameter", "rng", "loss"} <= set(site.agreeing_inputs)
    assert (cause.knob, cause.reference, cause.candidate) == ("accumulation.tail_divisor", "actual", "configured")
    assert (cause.status, cause.identical_through_update) == ("confirmed", 3)
    assert "candidate / reference is 1/4 in every element, exactly" in cause.evidence


def test_a_fault_that_no_knob_explains_does_not_hide_the_next_one(run, edited):
    recipe = load("fixtures/recipes/ragged_tail.toml", ["schedule.name=linear", "schedule.warmup=1"])
    twice = ("scheduler.step()", "scheduler.step(); scheduler.step()")  # no knob steps a schedule twice an update
    result = run("ragged_tail", edited(("min(recipe.accumulation, left)", "recipe.accumulation"), twice), recipe)
    assert result.first_divergence.moment == "schedule"
    assert causes(result) == [("accumulation.tail_divisor", "configured", "confirmed")]
    assert {gap.site.moment for gap in result.unexplained} == {"schedule"}


def test_an_unrequested_clip_is_read_from_the_candidate(run, edited):
    recipe = load("fixtures/recipes/ragged_tail.toml", ["clip.max_norm=inf"])
    result = run("ragged_tail", edited(("recipe.clip.max_norm", "0.1")), recipe)
    (cause,) = result.causes
    assert (cause.knob, cause.reference, cause.candidate) == ("hyperparameter.max_norm", None, 0.1)
    assert cause.status == "confirmed"


def test_what_no_knob_explains_is_not_given_a_cause(run, edited):
    result = run("ragged_tail", edited(("optimizer.step()", "model[0].weight.grad[0] += 1.0; optimizer.step()")))
    assert result.verdict == "diverged"
    assert result.causes == ()
    assert (result.first_divergence.update, result.first_divergence.moment) == (0, "consume")
    assert result.unexplained[0].ruled_out


def test_a_plan_of_the_rate_that_fits_one_update_alone_is_not_proven(run):
    recipe = from_dict({
        "epochs": 2, "batch_size": 2, "accumulation": 3, "optimizer": {"name": "sgd", "lr": 0.05},
        "schedule": {"name": "linear", "warmup": 2}, "clip": {"max_norm": float("inf")},
    })  # fmt: skip
    result = run("regression", f"{TRAINERS}/planted.py:UnitUnknown", recipe)
    assert [cause.status for cause in result.causes] == ["suggested"]
    assert [(one.site.update, one.site.kind) for one in result.unexplained] == [(3, "learning_rate")]


def test_a_tail_that_leaks_into_the_next_epoch_is_found_where_its_update_is_missing(run, edited):
    never_flushes = (" or i + 1 == len(batches)", "")
    result = run("ragged_tail", edited(("min(recipe.accumulation, left)", "recipe.accumulation"), never_flushes))
    assert result.verdict == "diverged"
    assert causes(result) == [("accumulation.tail", "leak", "confirmed")]


# Runs that cannot be judged


def test_a_candidate_that_differs_from_itself_is_nondeterministic(run):
    result = run("ragged_tail", f"{TRAINERS}/differs_from_itself.py:DiffersFromItself")
    assert (result.verdict, result.exit_code) == ("nondeterministic", 3)
    assert result.first_divergence is not None
    assert result.causes == ()


@pytest.mark.parametrize(
    ("file", "name", "words"),
    [("raises", "Raises", "RuntimeError"), ("killed", "Killed", "SIGKILL"), ("trains_nothing", "TrainsNothing", "")],
)
def test_a_candidate_that_fails_is_not_comparable_and_has_its_last_words(run, file, name, words):
    result = run("ragged_tail", f"{TRAINERS}/{file}.py:{name}")
    assert (result.verdict, result.exit_code) == ("not_comparable", 3)
    assert words in text.render(result)


def test_a_hung_candidate_is_stopped_at_its_time_limit(server):
    recipe = load("fixtures/recipes/ragged_tail.toml")
    request = Request(task="ragged_tail", trainer=f"{TRAINERS}/hangs.py:Hangs", recipe=recipe, timeout=2.0)
    result = check(request, server=server)
    assert (result.verdict, result.exit_code) == ("not_comparable", 3)
    assert result.candidate_outcome.status == "timed_out"


def test_nan_in_one_run_only_diverges(run):
    result = run("ragged_tail", f"{TRAINERS}/not_a_number.py:NotANumber", from_dict({"epochs": 1}))
    assert (result.verdict, result.exit_code) == ("diverged", 1)


def test_the_same_nan_in_both_is_never_a_match(run, tmp_path):
    task = tmp_path / "nan_task.py"
    task.write_text(
        textwrap.dedent("""
        import torch
        from reference_loop.task import Task

        def data():
            return [{"x": torch.full((3,), float("nan")), "y": torch.zeros(1)} for _ in range(4)]

        def loss(model, batch, reduction):
            return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"], reduction=reduction)

        task = Task(name="nan", model=lambda: torch.nn.Linear(3, 1), train_data=data, loss=loss)
    """)
    )
    result = run(str(task), f"{TRAINERS}/healthy.py:Healthy", from_dict({"epochs": 1}))
    assert (result.verdict, result.exit_code) == ("not_comparable", 3)
    assert "NaN" in result.reason


# Reports


def test_every_report_of_a_real_result_says_the_same_first_line(run, edited):
    result = run("ragged_tail", edited(("min(recipe.accumulation, left)", "recipe.accumulation")))
    line = text.render(result).splitlines()[0]
    assert line == "DIVERGED at update 1, consume: gradient of 0.weight"
    for report in (markdown, html, junit):
        assert "update 1, consume: gradient of 0.weight" in report.render(result)
    assert Result.from_json(result.to_json()) == result


def test_the_command_line_writes_what_it_is_asked_for(tmp_path, capsys):
    files = {kind: tmp_path / f"result.{kind}" for kind in ("json", "junit", "html", "markdown")}
    trainer = f"{TRAINERS}/healthy.py:Healthy"
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    code = main(["check", "ragged_tail", "--trainer", trainer, "--updates", "2", *options])
    assert code == 0
    assert capsys.readouterr().out.startswith("MATCH over 2 updates")
    assert json.loads(files["json"].read_text())["verdict"] == "match"
    assert all(path.stat().st_size for path in files.values())


def test_an_argument_of_the_command_line_reaches_the_trainer_and_the_result(tmp_path, capsys):
    (tmp_path / "trainer.py").write_text(
        "from __future__ import annotations\n"
        "class Trainer:\n"
        "    def __init__(self, words, rate=2.0):\n"
        "        self.rate, self.words = rate, words\n"
        "    def train(self, job):\n"
        "        assert self.words == 'bare words'\n"
        "        model = job.model()\n"
        "        optimizer = job.optimizer(model)\n"
        "        for group in optimizer.param_groups:\n"
        "            group['lr'] *= self.rate\n"
        "        for epoch in range(job.recipe.epochs):\n"
        "            for batch in job.loader():\n"
        "                job.loss(model, batch).backward()\n"
        "                optimizer.step()\n"
        "                optimizer.zero_grad()\n"
    )
    trainer, file = f"{tmp_path}/trainer.py:Trainer", f"{tmp_path}/result.json"
    line = ["check", "regression", "--set", "accumulation=1", "--trainer", trainer, "--json", file]
    given = ["--argument", "words=bare words", "--argument", "rate=1.0"]
    assert main([*line, *given]) == 0
    result = Result.read(file)
    assert result.candidate["arguments"] == {"words": "bare words", "rate": 1.0}
    assert shlex.split(result.rerun)[-4:] == given
    assert main([*line, "--argument", "pace=1.0"]) == 2
    assert "a trainer is constructed with pace=1.0, as was asked" in capsys.readouterr().err
