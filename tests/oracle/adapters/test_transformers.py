"""The transformers adapter, on whichever version is installed; `test_versions.py` runs this file in layers."""

from __future__ import annotations

import importlib.util
import inspect
import warnings

import pytest
import torch
from packaging.version import Version

from oracle.adapters import transformers as adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from oracle.tasks import fixtures
from reference_loop.recipe import Recipe, from_dict

if importlib.util.find_spec("transformers") is None:
    REASON = "transformers is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in layers"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

import transformers

installed = Version(transformers.__version__)
FUSED = {"optimizer.kernel": "fused"} if installed >= Version("4.54") else {}
GROUPS = FUSED | {"optimizer.decay_set": "names", "schedule.formula": "remaining"}
TAIL = {"accumulation.tail_divisor": "configured"} if Version("4.50") < installed < Version("4.55") else {}
UNITS = {"accumulation.units": "labels"} if installed < Version("5") else {}
OLD = {}
if installed < Version("4.50"):
    OLD = {
        "accumulation.normalise": "sum",
        "accumulation.tail": "carry",
        "schedule.horizon": "floor",
        "schedule.stop": "horizon",
    }
SHUFFLED = {"data.order": "seeded_epoch"}


def allowed(recipe: Recipe) -> set[str]:
    """The arguments of `TrainingArguments` and `Trainer` that a recipe states, those of every run included."""
    names = {"model", "args", "train_dataset", "callbacks", "output_dir", "use_cpu"}
    names |= {"seed", "per_device_train_batch_size", "gradient_accumulation_steps"}
    names |= {"dataloader_drop_last", "dataloader_num_workers", "lr_scheduler_type"}
    names.add("num_train_epochs" if recipe.updates is None else "max_steps")
    if not recipe.shuffle:
        names.add("train_sampling_strategy")
    stated = set(recipe.optimizer.arguments())
    if recipe.optimizer.name == "adamw" and stated <= {"lr", "weight_decay", "betas", "eps"}:
        names.add("learning_rate")
        names |= {"weight_decay"} & stated
        names |= {"adam_beta1", "adam_beta2"} if "betas" in stated else set()
        names |= {"adam_epsilon"} if "eps" in stated else set()
    elif recipe.optimizer.name == "sgd" and stated <= {"lr", "weight_decay"}:
        names |= {"optim", "learning_rate"} | ({"weight_decay"} & stated)
    else:
        names.add("optimizers")
    for table, more in {
        "schedule": {"warmup_steps"},
        "clip": {"max_grad_norm"},
        "log": {"logging_strategy", "logging_steps"},
        "evaluate": {"eval_strategy", "eval_steps", "per_device_eval_batch_size", "eval_dataset", "label_names"},
        "checkpoint": {"save_strategy", "save_steps"},
    }.items():
        if getattr(recipe, table) is not None:
            names |= more
    return names | {"bfloat16": {"bf16"}, "float16": {"fp16"}}.get(recipe.precision.dtype, set())


@pytest.fixture
def said(monkeypatch):
    """Every argument that `TrainingArguments` and `Trainer` were given."""
    seen = {}

    def spy(kind):
        original = kind.__init__

        def init(self, *args, **kwargs):
            assert not args
            seen.update(kwargs)
            original(self, **kwargs)

        monkeypatch.setattr(kind, "__init__", init)

    spy(transformers.Trainer)
    spy(transformers.TrainingArguments)
    return seen


RECIPES = [
    {},
    {"epochs": 2, "accumulation": 2, "drop_last": True},
    {"shuffle": True},
    {"optimizer": {"name": "sgd", "weight_decay": 0.1}},
    {"optimizer": {"name": "sgd", "momentum": 0.9}},
    {"optimizer": {"name": "adam"}},
    {"optimizer": {"name": "adamw"}},
    {"optimizer": {"name": "adamw", "weight_decay": 0.1, "betas": [0.8, 0.9], "eps": 1e-6}},
    {"optimizer": {"name": "adamw", "amsgrad": True}},
    {"schedule": {"name": "cosine", "warmup": 1}},
    {"clip": {"max_norm": 0.5}},
    {"precision": {"dtype": "bfloat16"}},
    {"precision": {"dtype": "float16"}},
    {"log": {}},
    {"evaluate": {}},
    {"checkpoint": {"every": 1}},
]


@pytest.mark.parametrize("values", RECIPES)
def test_it_says_only_what_the_recipe_states(train, said, values):
    recipe = from_dict({"updates": 1, **values} if "epochs" not in values else values)
    train("transformers", "ragged_tail", recipe)
    assert set(said) <= allowed(recipe)


def test_an_argument_that_nobody_stated_is_found(train, said, monkeypatch):
    spoken = adapter.training_arguments
    monkeypatch.setattr(adapter, "training_arguments", lambda job: {**spoken(job), "adam_epsilon": 1e-6})
    recipe = from_dict({"updates": 1})
    train("transformers", "ragged_tail", recipe)
    assert set(said) - allowed(recipe) == {"adam_epsilon"}


CASES = {
    "ragged tail": ("ragged_tail", "ragged_tail", (), OLD | TAIL, {}),
    "regression": ("regression", "regression", ("clip.max_norm=inf",), OLD, {}),
    "tokens": ("tokens", "tokens", (), OLD, {}),
    "BatchNorm and momentum": ("batchnorm", "batchnorm", (), OLD, {}),
    "shuffled": ("decoder", "shuffle", (), OLD | SHUFFLED, {}),
    "evaluating": ("ragged_tail", "evaluate", (), OLD | TAIL, {}),
    "bfloat16": ("decoder", "bfloat16", (), OLD | FUSED, {"weight_decay": 0.0}),
    "AdamW without decay": ("decoder", "adamw", ("optimizer.weight_decay=0.0",), OLD | FUSED, {}),
    "its own Llama": ("llama", "llama", (), UNITS, {}),
}
if not OLD:  # it took samples for batches when it counted the last window, and knew norms by their type alone
    CASES["ragged tail, three to a window"] = ("ragged_tail", "ragged_tail", ("accumulation=3",), TAIL, {})
    CASES["decay groups, warm-up and a line"] = ("decoder", "decoder", (), GROUPS, {})
    CASES["what nobody said"] = ("decoder", "unsaid", ("clip.max_norm=1.0",), GROUPS | SHUFFLED, {})


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(train, reference, recipe_named, case):
    task, name, sets, knobs, hyper = CASES[case]
    recipe = recipe_named(name, *sets)
    expected = reference(task, recipe, knobs, **hyper)
    found = train("transformers", task, recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder", "evaluate.every=2")
    bare = train("transformers", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("transformers", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


@pytest.mark.parametrize("task", ["regression", "tokens"])
def test_samples_come_in_their_order_unless_the_recipe_shuffles(train, task):
    job = train("transformers", task, from_dict({"updates": 2, "batch_size": 3}))
    assert job.ids == [[0, 1, 2], [3, 4, 5]]
    shuffled = train("transformers", task, from_dict({"updates": 2, "batch_size": 3, "shuffle": True}))
    assert shuffled.ids != job.ids


def test_it_reports_at_the_updates_that_the_recipe_names(train, recipe_named):
    job = train("transformers", "ragged_tail", recipe_named("evaluate"))
    assert [name for name, _ in job.logged] == ["loss"] * 4
    assert [list(metrics) for metrics in job.metrics] == [["loss"]] * 2
    saved = sorted(path.name for path in job.workdir.iterdir() if path.name.startswith("checkpoint"))
    assert saved == ["checkpoint-2", "checkpoint-4"]


def test_its_evaluation_loss_is_the_task_s(train, recipe_named):
    job = train("transformers", "regression", recipe_named("evaluate"))
    assert job.metrics[-1]["loss"] == pytest.approx(job.evaluate(job.trained)["loss"], rel=1e-6)


def test_a_wrapped_model_has_the_sample_s_entries_for_a_signature(tmp_path):
    model = torch.nn.Linear(1, 1)
    wrapped = adapter.wrapped(None, model, ["id", "x", "labels"])
    parameters = inspect.signature(wrapped.forward).parameters
    assert list(parameters) == ["id", "x", "labels"]
    assert all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
    assert next(wrapped.parameters()) is model.weight


def test_an_entry_that_would_be_renamed_is_refused():
    with pytest.raises(TrainerError, match="'label', which Trainer renames to 'labels': call it 'labels' in the task"):
        adapter.sample_names([{"id": 0, "label": 1}])


@pytest.mark.skipif(bool(OLD), reason="transformers before 4.50 cannot read its own checkpoints under this torch")
@pytest.mark.parametrize("task", ["decoder", "llama"])
def test_a_resumed_run_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named, task):
    recipe = recipe_named(task, "checkpoint.every=2")
    whole = train("transformers", task, recipe).parameters()
    first = interrupted("transformers", task, recipe, cut=3)
    resumed = train("transformers", task, recipe, resume_from=first.workdir).parameters()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"no checkpoint in .* to resume from: state \[checkpoint\] every"):
        train("transformers", "regression", from_dict({}), resume_from=tmp_path)


class OwnLoss(torch.nn.Module):
    """Written for `Trainer`."""

    def forward(self, x, labels=None, **loss_kwargs):
        return {"loss": x.sum()}


class NoLabels(torch.nn.Module):
    """Takes whatever it is given, and computes no loss."""

    def forward(self, x, **kwargs):
        return x


def test_a_module_that_is_written_for_trainer_is_known_by_its_signature():
    assert adapter.has_own_loss(OwnLoss())
    assert not adapter.has_own_loss(NoLabels())
    assert not adapter.has_own_loss(torch.nn.Linear(1, 1))


def test_a_module_with_its_own_loss_is_trained_on_it(train, reference):
    path = str(fixtures() / "probes" / "own_loss.py")
    recipe = from_dict({"updates": 2, "batch_size": 2, "accumulation": 3, "clip": {"max_norm": float("inf")}})
    own = {} if installed < Version("4.46") else {"accumulation.normalise": "unit_mean", "accumulation.units": "labels"}
    expected = reference(path, recipe, own)
    found = train("transformers", path, recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_what_it_passes_is_told_without_a_run(said):
    recipe = from_dict({"optimizer": {"name": "adam"}, "clip": {"max_norm": 0.5}})
    told = adapter.Adapter().passes(recipe)
    assert {name.rpartition(".")[2] for name in told} <= allowed(recipe) and not said
    assert told["TrainingArguments.max_grad_norm"] == 0.5 and "Trainer.optimizers" in told
