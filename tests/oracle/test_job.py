"""What a trainer is given is plain torch, built as the recipe asks."""

from __future__ import annotations

import random
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from oracle.job import Job
from reference_loop.decay import decays
from reference_loop.recipe import from_dict
from reference_loop.task import Task, TaskError


def data():
    return [{"id": torch.tensor(i), "x": torch.full((2,), float(i))} for i in range(5)]


def mean_output(model, batch, reduction):
    outputs = model(batch["x"])
    return outputs.mean() if reduction == "mean" else outputs.sum()


def make(tmp_path, *, recorder=None, recipe=None, ranks=1, **task):
    fields = {"name": "toy", "model": lambda: nn.Linear(2, 1), "train_data": data, "loss": mean_output}
    return Job(Task(**{**fields, **task}), from_dict(recipe or {}), workdir=tmp_path, ranks=ranks, recorder=recorder)


class Witness:
    """A recorder that keeps what it is told."""

    def __init__(self):
        self.told = []

    def attach(self, **parts):
        self.told.append(("attach", *parts))

    def open_loss(self, model, batch):
        self.told.append(("loss of", sorted(batch)))

    def close_loss(self, loss):
        self.told.append(("loss", loss))

    @contextmanager
    def evaluating(self):
        self.told.append(("evaluating",))
        yield
        self.told.append(("evaluated", torch.is_grad_enabled()))

    def metric(self, moment, name, value):
        self.told.append((moment, name, value))


def test_model_is_the_seed_s_and_leaves_the_seed_s_state(tmp_path):
    job = make(tmp_path, recipe={"seed": 7})
    weight = job.model().weight.clone()
    draws = torch.rand(3), random.random()
    torch.manual_seed(7)
    assert torch.equal(weight, nn.Linear(2, 1).weight)
    torch.manual_seed(7)
    random.seed(7)
    assert torch.equal(draws[0], torch.rand(3))
    assert draws[1] == random.random()


def test_data_that_draws_does_not_move_the_generators(tmp_path):
    job = make(tmp_path, train_data=lambda: [{"x": torch.rand(2)} for _ in range(3)])
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first = job.train_data()
    assert torch.equal(torch.rand(1), expected)
    assert job.train_data() is first
    assert torch.equal(make(tmp_path, train_data=job.task.train_data).train_data()[0]["x"], first[0]["x"])


def test_each_iteration_over_a_rank_s_loader_is_the_next_epoch_even_after_one_that_was_left(tmp_path):
    def read(left):
        job = make(tmp_path, recipe={"shuffle": True, "parallel": {"ranks": 2}}, ranks=2)
        if left:
            next(iter(job.loader()))
        else:
            list(job.loader())
        return [batch["id"].tolist() for batch in job.loader()]

    assert read(left=True) == read(left=False)


def test_loader_is_a_plain_dataloader_and_one(tmp_path):
    job = make(tmp_path, recipe={"batch_size": 2, "drop_last": True})
    assert type(job.loader()) is DataLoader
    assert job.loader() is job.loader()
    assert [batch["id"].tolist() for batch in job.loader()] == [[0, 1], [2, 3]]


def test_a_generator_is_read_anew_each_epoch(tmp_path):
    job = make(tmp_path, train_data=lambda: iter(data()))
    assert isinstance(job.train_data(), IterableDataset)
    for _ in range(2):
        assert [batch["id"].tolist() for batch in job.loader()] == [[0, 1], [2, 3], [4]]
    assert job.updates_per_epoch == 3


def test_shuffling_what_can_only_be_iterated_is_refused(tmp_path):
    with pytest.raises(TaskError, match="can only be iterated, and the recipe asks to shuffle: return a data set with"):
        make(tmp_path, train_data=lambda: iter(data()), recipe={"shuffle": True}).loader()


def test_optimizer_has_one_group_in_the_model_s_order_where_all_decay(tmp_path):
    job = make(tmp_path, recipe={"optimizer": {"name": "adamw", "lr": 0.5}})
    model = job.model()
    optimizer = job.optimizer(model)
    assert type(optimizer) is torch.optim.AdamW
    (group,) = optimizer.param_groups
    assert all(a is b for a, b in zip(group["params"], model.parameters(), strict=True))
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.01)


def test_optimizer_groups_follow_the_decay_set(tmp_path):
    asked = {"optimizer": {"weight_decay": 0.1}, "semantics": {"optimizer.decay_set": "no_bias"}}
    job = make(tmp_path, recipe=asked)
    model = job.model()
    decaying, others = job.optimizer(model).param_groups
    assert [decaying["weight_decay"], others["weight_decay"]] == [0.1, 0.0]
    assert decaying["params"][0] is model.weight and others["params"][0] is model.bias


class Zoo(nn.Module):
    """A parameter for each rule to judge."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.block = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "ln": nn.LayerNorm(2), "final_norm": nn.Linear(2, 2)})
        self.group = nn.GroupNorm(1, 2)
        self.attention = nn.MultiheadAttention(2, 1)
        self.gain = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize(
    ("decay_set", "exempt"),
    [
        ("all", set()),
        (
            "no_bias",
            {"block.norm.bias", "block.ln.bias", "block.final_norm.bias", "group.bias", "attention.in_proj_bias"}
            | {"attention.out_proj.bias"},
        ),
        (
            "no_bias_norm",
            {"block.norm.bias", "block.ln.bias", "block.final_norm.bias", "group.bias", "attention.in_proj_bias"}
            | {"attention.out_proj.bias", "block.norm.weight", "block.ln.weight", "group.weight"},
        ),
        (
            "names",
            {"block.norm.bias", "block.ln.bias", "block.final_norm.bias", "group.bias", "attention.in_proj_bias"}
            | {"attention.out_proj.bias", "block.norm.weight", "block.ln.weight", "block.final_norm.weight"},
        ),
        (
            "matrices",
            {"block.norm.bias", "block.ln.bias", "block.final_norm.bias", "group.bias", "attention.in_proj_bias"}
            | {"attention.out_proj.bias", "block.norm.weight", "block.ln.weight", "group.weight", "gain"},
        ),
    ],
)
def test_decay_sets_exempt_what_they_say(decay_set, exempt):
    model = Zoo()
    found = decays(decay_set, model)
    assert list(found) == [name for name, _ in model.named_parameters()]
    assert {name for name, decaying in found.items() if not decaying} == exempt


def test_scheduler_follows_the_formula_over_the_planned_updates(tmp_path):
    asked = {"epochs": 2, "batch_size": 1, "optimizer": {"lr": 1.0}, "schedule": {"name": "linear", "warmup": 2}}
    job = make(tmp_path, recipe=asked)
    assert (job.total_updates, job.updates_per_epoch) == (10, 5)
    optimizer = job.optimizer(job.model())
    scheduler = job.scheduler(optimizer)
    rates = []
    for _ in range(10):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates == [0.0, 0.5, *(1 - i / 8 for i in range(8))]


def test_scheduler_without_a_schedule_keeps_the_rate(tmp_path):
    job = make(tmp_path)
    optimizer = job.optimizer(job.model())
    scheduler = job.scheduler(optimizer)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.1]


@pytest.mark.parametrize(("dtype", "enabled"), [("float32", False), ("bfloat16", False), ("float16", True)])
def test_scaler_works_for_float16_only(tmp_path, dtype, enabled):
    scaler = make(tmp_path, recipe={"precision": {"dtype": dtype}, "scaler": {"init_scale": 8.0}}).scaler()
    assert scaler.is_enabled() is enabled
    assert scaler.get_scale() == (8.0 if enabled else 1.0)


def test_evaluation_leaves_every_module_as_it_was(tmp_path):
    seen = []

    def metrics(model, batches):
        seen.append((model.training, torch.is_grad_enabled(), [len(batch["x"]) for batch in batches]))
        return {"size": torch.tensor(5.0)}

    job = make(tmp_path, model=lambda: nn.Sequential(nn.Linear(2, 1), nn.Dropout()), eval_data=data, metrics=metrics)
    model = job.model()
    model[1].eval()
    assert job.evaluate(model) == {"size": 5.0}
    assert seen == [(False, False, [2, 2, 1])]
    assert [module.training for module in model.modules()] == [True, True, False]
    assert torch.is_grad_enabled()


def test_evaluation_without_metrics_says_what_to_add(tmp_path):
    job = make(tmp_path)
    with pytest.raises(TaskError, match=r"task 'toy' has no metrics: add eval_data=\.\.\. and metrics=\.\.\."):
        job.evaluate(job.model())


@pytest.mark.parametrize(
    ("returned", "words"),
    [(torch.ones(4), r"found shape \(4,\): reduce it"), (1.5, "found float")],
)
def test_a_loss_that_is_no_scalar_is_refused_with_what_was_found(tmp_path, returned, words):
    job = make(tmp_path, loss=lambda model, batch, reduction: returned)
    with pytest.raises(TaskError, match=f"task 'toy': loss must return a scalar tensor, {words}"):
        job.loss(job.model(), next(iter(job.loader())))


def test_the_recorder_is_told_of_losses_metrics_and_logs(tmp_path):
    witness = Witness()
    job = make(tmp_path, recorder=witness, eval_data=data, metrics=lambda model, batches: {"m": 2})
    model = job.model()
    loss = job.loss(model, next(iter(job.loader())))
    job.evaluate(model)
    job.log("loss", loss)
    job.observe(optimizer=None)
    assert witness.told[:3] == [("attach", "model"), ("loss of", ["id", "x"]), ("loss", loss)]
    assert witness.told[3:5] == [("evaluating",), ("evaluated", True)]
    assert witness.told[5:] == [("evaluate", "m", 2.0), ("log", "loss", loss.item()), ("attach", "optimizer")]


def test_the_recorder_is_told_when_a_loss_raises(tmp_path):
    witness = Witness()
    job = make(tmp_path, recorder=witness, loss=lambda model, batch, reduction: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job.loss(job.model(), {"x": torch.ones(1, 2)})
    assert witness.told[-1] == ("loss", None)
