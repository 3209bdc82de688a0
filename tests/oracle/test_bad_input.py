"""Whatever a user's files do: one message that says what was found and what to do, or a right verdict."""

from __future__ import annotations

import pytest

from oracle.check import Request, check
from oracle.cli import main
from oracle.errors import USAGE_ERRORS
from oracle.replays import Server
from oracle.report import text
from reference_loop.recipe import load

TASK = """
import torch
from torch import nn
from reference_loop.task import Task

def data():
    numbers = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(3, generator=numbers), "y": torch.randn(1, generator=numbers)} for _ in range(4)]

def loss(model, batch, reduction):
    return nn.functional.mse_loss(model(batch["x"]), batch["y"], reduction=reduction)

def make(**changes):
    return Task(**{"name": "t", "model": lambda: nn.Linear(3, 1), "train_data": data, "loss": loss, **changes})

"""

TRAINER = """
import os, sys, threading
import torch

class Trainer:
    def train(self, job):
        model = job.model()
        optimizer = job.optimizer(model)
        scheduler = job.scheduler(optimizer)
        for batch in job.loader():
            job.loss(model, batch).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def run(server, tmp_path):
    """Check a trainer, TRAINER with an edit, on a task that some source makes."""

    def run(task="task = make()", old="", new="", sets=()):
        (tmp_path / "task.py").write_text(TASK + task)
        assert old in TRAINER
        (tmp_path / "trainer.py").write_text(TRAINER.replace(old, new) if old else TRAINER)
        trainer = f"{tmp_path / 'trainer.py'}:Trainer"
        request = Request(task=str(tmp_path / "task.py"), trainer=trainer, recipe=load(None, sets), timeout=30.0)
        return check(request, server=server)

    return run


SPARSE = """
class Sparse(nn.Linear):
    def forward(self, x):
        return nn.functional.embedding(torch.zeros(len(x), dtype=torch.long), self.weight, sparse=True)

task = make(model=lambda: Sparse(3, 1), loss=lambda m, b, r: m(b["x"]).mean())
"""


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (
            "import sys; sys.exit(3)",
            r"raised SystemExit in line 16: 3: put what a script does under if __name",
        ),
        ("task = make(model=lambda: 3)", "'t': model must return an nn.Module, found int"),
        ("task = make(model=nn.Identity)", "'t': the model has no parameters, so nothing can be trained"),
        ("task = make(model=lambda: nn.Linear(3, 1).requires_grad_(False))", "the model has only frozen parameters"),
        ("task = make(model=lambda: nn.LazyLinear(1))", "'t': parameter weight has no shape yet: give the model one"),
        ("task = make(model=lambda: 1 / 0)", r"cannot train .*task.py: raised ZeroDivisionError in line 16: division"),
        ("task = make(train_data=lambda: 1 / 0)", r"'t': train_data\(\) raised ZeroDivisionError: division by zero"),
        ("task = make(train_data=lambda: None)", r"'t': train_data\(\) returned NoneType: return a data set"),
        ("task = make(train_data=lambda: [])", "train_data holds no samples, so nothing can be trained"),
        ("task = make(train_data=lambda: [(1, 2)])", "must be dicts of tensors, found list: return a dict for each"),
        ("task = make(loss=lambda m, b, r: 0.5)", "'t': loss must return a scalar tensor, found float"),
        ("task = make(loss=lambda m, b, r: m(b['x']))", r"loss must return a scalar tensor, found shape \(2, 1\)"),
        ("task = make(loss=lambda m, b, r: torch.ones(()))", "'t': the loss depends on no trainable parameter"),
        ("task = make(loss=lambda m, b, r: 1 / 0)", "raised ZeroDivisionError in line 16: division by zero: mend the"),
        ("task = make(loss=lambda m, b: 1 / 0)", "raised TypeError: <lambda>.* takes 2 positional arguments but 3"),
        ("task = make(units=lambda b: 'many')", "'t': units must return an int, found 'many'"),
        (
            SPARSE,
            "the gradient of weight is sparse, and the reference trains with dense ones: build the module with",
        ),
    ],
)
def test_a_task_that_cannot_be_trained_is_refused(run, task, words):
    with pytest.raises(USAGE_ERRORS, match=words) as refused:
        run(task)
    assert "\n" not in str(refused.value)


def test_an_evaluation_without_metrics_is_refused(run):
    with pytest.raises(USAGE_ERRORS, match="'t' has no metrics, and the recipe evaluates: add eval_data"):
        run(sets=["evaluate.every=1"])


def test_the_traceback_of_a_failed_reference_is_there_for_debugging(run):
    with pytest.raises(USAGE_ERRORS) as refused:
        run("task = make(model=lambda: 1 / 0)")
    assert "ZeroDivisionError" in refused.value.__notes__[0]


CHILD = """scheduler.step()
            child = os.fork()
            if not child:
                job.loss(model, batch).backward()
                optimizer.step()
                os._exit(0)
            os.waitpid(child, 0)"""

BUFFERS = """
class Model(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("none", None)

    def forward(self, x):
        self.mean = self.mean * 0.9 + x.mean(0)
        self.count += 1
        return super().forward(x + self.mean)

task = make(model=Model)
"""


@pytest.mark.parametrize(
    ("task", "old", "new"),
    [
        pytest.param(BUFFERS, "", "", id="buffers that are replaced"),
        pytest.param("task = make(model=lambda: nn.Linear(3, 1).half(), loss=lambda m, b, r: "
                     "loss(lambda x: m(x.half()).float(), b, r))", "", "", id="half-precision parameters"),
        pytest.param("task = make(train_data=lambda: (one for one in data()))", "", "", id="a generator"),
        pytest.param("task = make(train_data=lambda: data()[:1])", "", "", id="fewer samples than a batch"),
        pytest.param("task = make()", "job.loss(model, batch).backward()",
                     "torch.nn.functional.mse_loss(model(batch['x']), batch['y']).backward()", id="a loss of its own"),
        pytest.param("task = make()", "job.loss(model, batch).backward()",
                     "(job.loss(model, batch, reduction='sum') / job.units(batch)).backward()", id="a sum"),
        pytest.param("task = make()", "job.loss(model, batch).backward()",
                     "t = threading.Thread(target=lambda: job.loss(model, batch).backward()); t.start(); t.join()",
                     id="a thread"),
        pytest.param("task = make()", "scheduler.step()",
                     CHILD,
                     id="a child that trains on its own"),
    ],
)  # fmt: skip
def test_a_healthy_run_in_an_unusual_style_matches(run, task, old, new):
    result = run(task, old, new)
    assert (result.verdict, result.exit_code) == ("match", 0), text.render(result)


@pytest.mark.parametrize(
    ("old", "new", "headline"),
    [
        ("optimizer.step()", "os._exit(0)", "NOT COMPARABLE: the candidate ended its own process, exit code 0"),
        ("optimizer.step()", "raise ValueError('one\\ntwo')", "the candidate raised ValueError: one, 0 updates made"),
        ("optimizer.step()", "raise KeyError", "NOT COMPARABLE: the candidate raised KeyError, 0 updates made"),
        ("optimizer.step()", "pass", "the candidate made no update: no step of an optimizer was seen"),
        ("model = job.model()", "return", "the candidate made no update: no step of an optimizer was seen"),
        (
            "optimizer.step()",
            "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})",
            "NOT COMPARABLE: the candidate raised Odd, 0 updates made",
        ),
    ],
)
def test_a_trainer_that_does_not_train_is_not_comparable(run, old, new, headline):
    result = run(old=old, new=new)
    assert result.exit_code == 3
    report = text.render(result)
    assert headline in report.splitlines()[0]
    assert "On one side" not in report


def test_another_dtype_is_a_difference_without_a_cause(run):
    result = run(old="optimizer = job", new="model.double(); optimizer = job")
    assert (result.verdict, result.causes) == ("diverged", ()), text.render(result)
    result = run(
        old="model = job", new="torch.set_default_dtype(torch.float64); model = job", task="task = make(train_data="
        "lambda: [{k: v.to(torch.get_default_dtype()) for k, v in one.items()} for one in data()])",
    )  # fmt: skip
    assert (result.first_divergence.moment, result.causes) == ("start", ()), text.render(result)


def test_a_stream_for_several_workers_is_refused(run):
    with pytest.raises(USAGE_ERRORS, match="each of the 2 workers would go through all of it: set workers to 1"):
        run("task = make(train_data=lambda: (one for one in data()))", sets=["workers=2"])


def test_a_witness_that_differs_is_counted_wherever_it_does(run):
    result = run(
        old="job.loss(model, batch).backward()",
        new="(job.loss(model, batch, reduction='sum') / job.units(batch)).backward()",
        sets=["batch_size=2", "epochs=1"],
    )
    assert [(item.kind, item.addresses) for item in result.latent] == [("loss", 2)]
    assert "Latent: 2 addresses differ in witness values alone." in text.render(result)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            '[[accept]]\ncause = "optimizer.kernell"\nreason = "x"\nuntil = 2030-01-01\n',
            "'optimizer.kernell' is no knob and no hyperparameter.NAME: did you mean 'optimizer.kernel'?",
        ),
    ],
)
@pytest.mark.parametrize("command", [["plan"], ["check", "--trainer", "fixtures/trainers/healthy.py:InHouse"]])
def test_a_recipe_that_no_command_can_follow_is_refused(command, recipe, words, tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text(recipe)
    assert main([*command, "regression", "--recipe", str(tmp_path / "recipe.toml")]) == 2
    assert words in capsys.readouterr().err


def test_a_set_without_a_value_does_not_blame_the_file(capsys):
    assert main(["plan", "regression", "--set", "epochs"]) == 2
    assert capsys.readouterr().err.startswith("error: --set takes KEY=VALUE")
