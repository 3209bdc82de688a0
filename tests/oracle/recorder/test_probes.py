"""Which addresses the probes give to what a trainer does, and what they find there."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.moments import Address

GENERATORS = ["torch", "python", "numpy"]
X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Rows(list[tuple[Address, Any]]):
    """What a recorder put, in order."""

    def put(self, address: Address, value: Any) -> None:
        assert not (isinstance(value, Tensor) and value.requires_grad)
        self.append((address, value.clone() if isinstance(value, Tensor) else value))

    def places(self) -> set[tuple[int, int, str, str]]:
        return {address[:4] for address, _ in self}

    def names(self, *place: Any) -> list[str]:
        return [address.name for address, _ in self if address[: len(place)] == place]

    def at(self, *place: Any) -> Any:
        """The one value at a place, as plain numbers."""
        found = [value for address, value in self if address[: len(place)] == place]
        assert len(found) == 1, (place, found)
        return found[0].tolist() if isinstance(found[0], Tensor) else found[0]

    def micros(self) -> list[tuple[int, int]]:
        """The micro-batches, in order."""
        return list(dict.fromkeys(address[:2] for address, _ in self if address.micro >= 0))


def record(train: Callable[[Recorder], None], **options: Any) -> tuple[Rows, Recorder]:
    """What a trainer's run puts."""
    rows = Rows()
    recorder = Recorder(rows.put, lambda: None, **options)
    with recorder:
        train(recorder)
        recorder.finish()
    return rows, recorder


def linear(size: int = 2) -> nn.Linear:
    model = nn.Linear(size, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    return model


def job_loss(recorder: Recorder, model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """What `job.loss` does."""
    loss = None
    recorder.open_loss(model, batch)
    try:
        loss = model(batch["x"]).mean()
        return loss
    finally:
        recorder.close_loss(loss)


def test_a_tiny_run_has_exactly_these_addresses() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        recorder.attach(model=model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _update in range(2):
            for micro in range(2):
                loss = job_loss(recorder, model, {"x": X[[micro]], "id": torch.tensor([7 + micro])})
                (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.metric("log", "loss", loss.detach())

    rows, _ = record(train)

    def rng(update: int, micro: int, moment: str) -> list[Address]:
        return [Address(update, micro, moment, "rng", name) for name in GENERATORS]

    expected = [Address(-1, -1, "start", "parameter", "weight"), *rng(-1, -1, "start")]
    for update in range(2):
        for micro in range(2):
            expected += [
                *rng(update, micro, "forward"),
                Address(update, micro, "forward", "mode", ""),
                Address(update, micro, "batch", "batch_ids", "id"),
                Address(update, micro, "batch", "input", "input"),
                Address(update, micro, "forward", "loss", ""),
                Address(update, micro, "backward", "objective", ""),
                Address(update, micro, "backward", "gradient", "weight"),
            ]
        if update == 0:
            arguments = ["momentum", "dampening", "weight_decay", "nesterov", "maximize", "optimized"]
            expected += [Address(-1, -1, "start", "hyperparameter", f"weight.{name}") for name in arguments]
        expected += [
            Address(update, -1, "consume", "gradient", "weight"),
            Address(update, -1, "consume", "learning_rate", "weight"),
            Address(update, -1, "update", "parameter", "weight"),
            *rng(update, -1, "update"),
            Address(update, -1, "log", "metric", "loss"),
            Address(update, -1, "schedule", "learning_rate", "weight"),
        ]
    expected += [
        Address(1, -1, "end", "count", "updates"),
        Address(1, -1, "end", "count", "batches"),
        Address(1, -1, "end", "parameter", "weight"),
    ]
    assert [address for address, _ in rows] == expected

    assert rows.at(-1, -1, "start", "parameter") == [[1.0, 1.0]]
    assert rows.at(0, 1, "batch", "batch_ids") == [8]
    assert rows.at(0, 1, "batch", "input") == [[3.0, 4.0]]
    assert rows.at(0, 1, "forward", "loss") == 7.0
    assert rows.at(0, 1, "backward", "objective") == 3.5
    assert rows.at(0, 0, "backward", "gradient") == [[0.5, 1.0]]
    assert rows.at(0, -1, "consume", "gradient") == [[2.0, 3.0]]
    assert rows.at(0, -1, "update", "parameter") == [[0.0, -0.5]]
    assert rows.at(0, -1, "log", "metric") == 7.0
    assert rows.at(1, -1, "end", "count", "updates") == 2
    assert rows.at(1, -1, "end", "count", "batches") == 4


def test_one_commit_an_update_and_one_at_the_end() -> None:
    commits: list[int] = []
    rows = Rows()
    recorder = Recorder(rows.put, lambda: commits.append(len(rows)))
    with recorder:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            model(X).mean().backward()
            optimizer.step()
        recorder.finish()
    assert len(commits) == 4  # when micro-batches 1 and 2 open, and twice at the end
    assert rows[commits[0] - 1][0][:3] == (0, -1, "schedule")
    assert rows[commits[0]][0][:3] == (1, 0, "forward")


def test_only_the_kinds_asked_for_are_recorded() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.Adam(model.parameters())
        model(X).mean().backward()
        optimizer.step()

    rows, _ = record(train, kinds={("update", "parameter"), "optimizer_state"})
    assert rows.places() == {(0, -1, "update", "parameter"), (0, -1, "update", "optimizer_state")}
    assert rows.names(0, -1, "update", "optimizer_state") == ["weight.step", "weight.exp_avg", "weight.exp_avg_sq"]


def test_a_trainer_that_never_calls_the_jobs_loss_has_micro_batches() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, x: Tensor, labels: Any = None, **rest: Any) -> dict[str, Tensor]:
            return {"loss": (self.inner(x) - labels["y"]).mean()}

    def train(recorder: Recorder) -> None:
        model, criterion = Model(), nn.L1Loss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for index in range(2):
            loss = model(X, labels={"y": torch.ones(2, 1)}, id=["a", index], other=torch.ones(1))["loss"]
            criterion(loss, torch.zeros(())).backward()
        optimizer.step()

    rows, recorder = record(train)
    assert rows.micros() == [(0, 0), (0, 1)]
    assert recorder.batches == 2
    assert rows.names(0, 1, "batch", "input") == ["x", "labels.y", "other"]
    assert rows.at(0, 1, "batch", "batch_ids") == ["a", 1]
    assert rows.at(0, 0, "forward", "loss") == 4.0
    assert rows.at(0, 0, "backward", "objective") == 4.0
    assert rows.at(0, -1, "consume", "gradient", "inner.weight") == [[4.0, 6.0]]


def test_two_forwards_before_a_backward_are_one_micro_batch() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        (model(X[:1]) + model(X[1:])).sum().backward()
        model(X).mean().backward()

    rows, recorder = record(train)
    assert rows.micros() == [(0, 0), (0, 1)]
    assert recorder.batches == 2
    assert rows.names(0, 0, "batch", "input") == ["input", "input"]


def test_a_loss_computed_inside_a_modules_forward_is_one_micro_batch() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = linear()

        def forward(self, recorder: Recorder, batch: dict[str, Any]) -> Tensor:
            return job_loss(recorder, self.model, batch)

    rows, recorder = record(lambda recorder: Module()(recorder, {"x": X}).backward())
    assert rows.micros() == [(0, 0)]
    assert recorder.batches == 1
    assert rows.names(0, 0, "batch", "input") == ["input"]


def test_two_backwards_in_a_micro_batch_are_both_recorded() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        output = model(X)
        output[0].sum().backward(retain_graph=True)
        torch.autograd.backward([output[1].sum(), output[0].sum()])

    rows, recorder = record(train)
    assert recorder.batches == 1
    assert rows.names(0, 0, "backward", "objective") == ["", "0", "1"]
    assert rows.names(0, 0, "backward", "gradient") == ["weight", "weight"]


def test_a_forward_that_no_hook_sees_still_has_its_backward() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        recorder.attach(model=model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(2):
            model.forward(X).mean().backward()
        optimizer.step()

    rows, recorder = record(train)
    assert rows.micros() == [(0, 0), (0, 1)]
    assert recorder.batches == 2
    assert not any(address.moment == "forward" for address, _ in rows)
    assert rows.at(0, -1, "consume", "gradient", "weight") == [[4.0, 6.0]]


def test_forwards_without_gradients_and_evaluations_have_no_address() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        recorder.attach(model=model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with torch.no_grad():
            job_loss(recorder, model, {"x": X})
            model(X)
        job_loss(recorder, model, {"x": X}).backward()
        with recorder.evaluating():  # in the middle of a window, with gradients on
            model(X).mean()
        recorder.metric("evaluate", "accuracy", torch.tensor(0.5))
        job_loss(recorder, model, {"x": X}).backward()
        optimizer.step()
        model.eval()
        with recorder.evaluating(), torch.no_grad():
            job_loss(recorder, model, {"x": X})

    rows, recorder = record(train)
    assert rows.micros() == [(0, 0), (0, 1)]
    assert recorder.batches == 2
    assert rows.at(-1, -1, "evaluate", "metric", "accuracy") == 0.5
    assert rows.at(-1, -1, "evaluate", "mode") == "train"
    assert rows.at(-1, -1, "evaluate", "gradient", "weight") == [[2.0, 3.0]]
    assert rows.at(0, -1, "evaluate", "mode") == "eval"
    assert rows.names(0, -1, "evaluate", "rng") == GENERATORS


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_in_a_checkpointed_backward_has_no_address(reentrant: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(linear(), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant).mean()

    rows, recorder = record(lambda recorder: Model()(X.clone().requires_grad_()).backward())
    assert recorder.batches == 1
    assert rows.names(0, 0, "batch", "input") == ["x"]
    assert rows.names(0, 0, "backward", "objective") == [""]


def test_a_forward_that_raises_leaves_the_next_one_its_place() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, x: Tensor, fails: bool) -> Tensor:
            if fails:
                raise MemoryError
            return self.inner(x).mean()

    def train(recorder: Recorder) -> None:
        model = Model()
        with pytest.raises(MemoryError):
            model(X, True)
        model(X, False).backward()

    rows, recorder = record(train)
    assert recorder.batches == 1
    assert rows.names(0, 0, "batch", "input") == ["x"]


def test_a_loss_that_raises_is_closed() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        with pytest.raises(RuntimeError):
            job_loss(recorder, model, {"x": torch.ones(1, 5)})
        model(X).mean().backward()

    rows, _ = record(train)
    assert rows.names(0, 0, "batch", "input") == ["input"]
    assert rows.at(0, 0, "forward", "mode") == "train"


# Optimizers


def test_gradients_of_a_closure_are_those_of_its_last_backward() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(X).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        optimizer.step(closure=closure)

    rows, recorder = record(train)
    assert (recorder.updates, recorder.batches) == (2, 2)
    assert rows.micros() == [(0, 0), (1, 0)]
    assert rows.at(0, -1, "consume", "gradient") == [[2.0, 3.0]]
    assert rows.names(-1, -1, "start", "parameter") == ["weight"]


def test_a_closure_that_raised_does_not_hide_the_next_step() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        model(X).mean().backward()
        optimizer.step()

    rows, recorder = record(train)
    assert recorder.updates == 1
    assert rows.at(0, -1, "consume", "gradient") == [[2.0, 3.0]]


def test_an_optimizer_may_call_its_closure_many_times_in_one_update() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(X) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    rows, recorder = record(train)
    assert recorder.updates == 1
    assert recorder.batches > 1
    assert rows.micros() == [(0, micro) for micro in range(recorder.batches)]
    assert "weight.old_dirs.0" in rows.names(0, -1, "update", "optimizer_state")


def test_steps_without_a_backward_are_updates() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        recorder.attach(model=model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer.step()
        optimizer.step()
        model(X).mean().backward()
        optimizer.step()

    rows, recorder = record(train)
    assert (recorder.updates, recorder.batches) == (3, 1)
    assert rows.micros() == [(2, 0)]
    assert rows.at(1, -1, "consume", "gradient", "weight") == [[0.0, 0.0]]
    assert rows.names(-1, -1, "start", "parameter") == ["weight"]
    assert rows.names(0, -1, "schedule") == ["weight"]


def test_a_gradient_that_is_none_is_consumed_as_zeros_and_a_frozen_parameter_not_at_all() -> None:
    def train(recorder: Recorder) -> None:
        model = nn.ModuleDict({"used": linear(), "idle": linear(), "frozen": linear(), "left_out": linear()})
        recorder.attach(model=model)
        model["frozen"].requires_grad_(False)
        parameters = [p for name, p in model.named_parameters() if "left_out" not in name]
        optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
        model["used"](X).mean().backward()
        optimizer.step()

    rows, _ = record(train)
    assert rows.names(0, -1, "consume", "gradient") == ["used.weight", "idle.weight"]
    assert rows.at(0, -1, "consume", "gradient", "idle.weight") == [[0.0, 0.0]]
    assert rows.names(0, 0, "backward", "gradient") == ["used.weight"]
    assert rows.names(0, -1, "update", "optimizer_state") == ["used.weight.momentum_buffer"]
    assert len(rows.names(0, -1, "update", "parameter")) == 4
    optimized = {a.name: v for a, v in rows if a.kind == "hyperparameter" and a.name.endswith("optimized")}
    assert optimized == {
        "used.weight.optimized": True,
        "idle.weight.optimized": True,
        "left_out.weight.optimized": False,
    }


def test_arguments_are_written_at_the_start_and_where_they_change() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.1)
        for update in range(3):
            model(X).mean().backward()
            optimizer.param_groups[0]["weight_decay"] = 0.1 if update < 2 else 0.2
            optimizer.step()

    rows, _ = record(train)
    assert rows.at(-1, -1, "start", "hyperparameter", "weight.weight_decay") == 0.1
    assert rows.at(-1, -1, "start", "hyperparameter", "weight.betas") == [0.9, 0.999]
    changed = [(a.update, a.name, v) for a, v in rows if a[2:4] == ("consume", "hyperparameter") and "." in a.name]
    assert changed == [(2, "weight.weight_decay", 0.2)]
    assert not {"weight.lr", "weight.fused", "weight.foreach"} & set(rows.names(-1, -1, "start", "hyperparameter"))


@pytest.mark.parametrize("first", [None, 1.0])
def test_clips_are_written_when_first_asked_for_and_where_they_change(first: float | None) -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for max_norm in (first, 1.0, torch.tensor(1.0), float("inf"), 2.0):
            model(X).mean().backward()
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=max_norm)
            optimizer.step()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()

    rows, _ = record(train)
    written = [(*a[:3], a.name, v) for a, v in rows if a.kind == "hyperparameter" and a.name.startswith("max_")]
    assert written == [
        (1, -1, "consume", "max_norm", 1.0) if first is None else (-1, -1, "start", "max_norm", 1.0),
        (3, -1, "consume", "max_norm", None),
        (4, -1, "consume", "max_norm", 2.0),
        (5, -1, "consume", "max_norm", None),
        (5, -1, "consume", "max_value", 0.5),
    ]


def test_nothing_is_said_of_clips_that_nobody_asked_for() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        model(X).mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()

    rows, _ = record(train)
    assert not [address for address, _ in rows if address.name in ("max_norm", "max_value")]


def test_a_clip_imported_before_the_recorder_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    trainer = types.ModuleType("trainer")
    trainer.clip_grad_norm_ = original = torch.nn.utils.clip_grad_norm_  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trainer", trainer)

    def train(recorder: Recorder) -> None:
        model = linear()
        model(X).mean().backward()
        trainer.clip_grad_norm_(model.parameters(), 1.5)
        torch.optim.SGD(model.parameters(), lr=0.5).step()

    rows, _ = record(train)
    assert rows.at(-1, -1, "start", "hyperparameter", "max_norm") == 1.5
    assert trainer.clip_grad_norm_ is original


def test_the_next_rate_is_read_when_the_next_window_opens() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(2):
            model(X).mean().backward()
            optimizer.step()
            scheduler.step()

    rows, _ = record(train)
    assert [rows.at(u, -1, "consume", "learning_rate") for u in range(2)] == [1.0, 0.5]
    assert [rows.at(u, -1, "schedule", "learning_rate") for u in range(2)] == [0.5, 0.25]
    assert rows.at(1, -1, "schedule", "scheduler")["last_epoch"] == 2


def test_the_second_optimizer_has_a_prefix_and_each_step_is_an_update() -> None:
    def train(recorder: Recorder) -> None:
        generator, discriminator = linear(), nn.Linear(1, 1)
        first = torch.optim.SGD(discriminator.parameters(), lr=0.5)
        second = torch.optim.Adam(generator.parameters(), lr=0.25)
        for _ in range(2):
            discriminator(generator(X).detach()).mean().backward()
            first.step()
            first.zero_grad()
            discriminator(generator(X)).mean().backward()
            second.step()
            second.zero_grad()

    rows, recorder = record(train)
    assert (recorder.updates, recorder.batches) == (4, 4)
    consumed = [rows.names(u, -1, "consume", "learning_rate") for u in range(4)]
    # Both models have a `weight`; the generator was called first.
    assert consumed[0] == consumed[2] == ["model[1].weight", "model[1].bias"]
    assert consumed[1] == consumed[3] == ["optimizer[1].weight"]
    assert "optimizer[1].weight.exp_avg" in rows.names(1, -1, "update", "optimizer_state")
    assert rows.names(1, -1, "update", "parameter") == ["weight", "model[1].weight", "model[1].bias"]


def test_an_optimizer_built_anew_takes_the_place_of_the_old_one() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        for rate in (0.5, 0.25):
            model(X).mean().backward()
            torch.optim.SGD(model.parameters(), lr=rate).step()

    rows, _ = record(train)
    assert [rows.at(u, -1, "consume", "learning_rate", "weight") for u in range(2)] == [0.5, 0.25]


def test_an_optimizer_that_steps_another_one_is_one_update() -> None:
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.step(closure)

    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = Outer(torch.optim.SGD(model.parameters(), lr=0.5))
        for _ in range(2):
            model(X).mean().backward()
            optimizer.step()

    rows, recorder = record(train)
    assert recorder.updates == 2
    assert [rows.names(u, -1, "consume", "gradient") for u in range(2)] == [["weight"], ["weight"]]


def test_an_optimizer_that_is_not_torchs_is_seen_when_shown() -> None:
    class Plain:
        def __init__(self, parameters: list[Tensor]) -> None:
            self.param_groups = [{"params": parameters, "lr": 0.5}]
            self.state: dict[Tensor, Any] = {}

        def step(self) -> None:
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter -= 0.5 * parameter.grad

    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = Plain(list(model.parameters()))
        recorder.attach(optimizer=optimizer)
        model(X).mean().backward()
        optimizer.step()
        with pytest.raises(TrainerError, match=r"observe object as an optimizer, found no param_groups, state, step"):
            recorder.attach(optimizer=object())

    rows, recorder = record(train)
    assert recorder.updates == 1
    assert rows.at(0, -1, "update", "parameter", "weight") == [[0.0, -0.5]]


def test_a_callback_ends_the_trainer_after_an_update() -> None:
    class Cut(BaseException):
        pass

    def stop(updates: int) -> None:
        if updates == 2:
            raise Cut

    def train(recorder: Recorder) -> None:
        recorder.on_update = stop
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with pytest.raises(Cut):
            for _ in range(5):
                model(X).mean().backward()
                optimizer.step()

    rows, recorder = record(train)
    assert recorder.updates == 2
    assert rows.names(1, -1, "update", "parameter") == ["weight"]


def test_averaged_parameters_are_read_after_the_trainer_averaged() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        recorder.attach(ema=averaged)
        for _ in range(2):
            model(X).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)

    rows, _ = record(train)
    assert [rows.at(u, -1, "update", "ema", "weight") for u in range(2)] == [[[0.0, -0.5]], [[-0.5, -1.25]]]


# Scaler


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_an_attempt_that_the_scaler_skips_is_one_update(fused: bool, unscale: bool) -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for update in range(3):
            factor = torch.tensor([1.0, float("inf")]) if update == 1 else torch.ones(2)
            loss = (model.weight * factor).sum() + 0 * model(X).sum()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    rows, recorder = record(train)
    inf = float("inf")
    assert (recorder.updates, recorder.batches) == (3, 3)
    assert rows.at(-1, -1, "start", "scaler", "scale") == 4.0
    assert rows.at(1, 0, "backward", "gradient") == [[4.0, inf]]
    assert [rows.at(u, -1, "consume", "gradient") for u in range(3)] == [[[1.0, 1.0]], [[1.0, inf]], [[1.0, 1.0]]]
    assert [rows.at(u, -1, "consume", "scaler", "scale") for u in range(3)] == [4.0, 4.0, 2.0]
    assert [rows.at(u, -1, "update", "scaler", "scale") for u in range(3)] == [4.0, 2.0, 2.0]
    assert [rows.at(u, -1, "update", "scaler", "growth_tracker") for u in range(3)] == [1, 0, 1]
    assert rows.at(0, -1, "update", "parameter") == rows.at(1, -1, "update", "parameter")
    assert [rows.at(u, -1, "update", "optimizer_state", "weight.step") for u in range(3)] == [1.0, 1.0, 2.0]


def test_the_first_attempt_may_be_skipped() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        recorder.attach(model=model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(model(X).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()

    rows, recorder = record(train)
    assert recorder.updates == 1
    assert rows.at(0, -1, "update", "parameter") == [[1.0, 1.0]]
    assert rows.at(-1, -1, "start", "hyperparameter", "weight.optimized") is True


def test_a_scaler_that_is_off_leaves_no_rows() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        scaler.scale(model(X).mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    rows, recorder = record(train)
    assert recorder.updates == 1
    assert not any(address.kind == "scaler" for address, _ in rows)


# Names


class Wrapper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: model,
        Wrapper,
        lambda model: Wrapper(Wrapper(model)),
        copy.deepcopy,
        lambda model: nn.ModuleDict({"net": Wrapper(copy.deepcopy(model))})["net"],
        lambda model: torch.compile(model, backend="eager"),
        lambda model: torch.compile(copy.deepcopy(model), backend="eager"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_names_are_those_of_the_tasks_model_whatever_wraps_or_copies_it(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = two_layers()

    def train(recorder: Recorder) -> None:
        recorder.attach(model=model)
        trained = wrap(model)
        optimizer = torch.optim.Adam(trained.parameters())
        trained(X).mean().backward()
        optimizer.step()

    rows, _ = record(train)
    expected = [name for name, _ in model.named_parameters()]
    for place in ((-1, -1, "start", "parameter"), (0, -1, "consume", "gradient"), (0, -1, "update", "parameter")):
        assert rows.names(*place) == expected
    assert rows.names(0, -1, "update", "buffer") == [name for name, _ in model.named_buffers()]
    assert rows.at(0, 0, "forward", "mode") == "train"


def test_parameters_added_around_the_tasks_model_have_names_too() -> None:
    class Adapter(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.base = model
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) * self.scale

    def train(recorder: Recorder) -> None:
        model = linear()
        recorder.attach(model=model)
        adapter = Adapter(model)
        adapter(X).mean().backward()
        torch.optim.SGD(adapter.parameters(), lr=0.5).step()

    rows, _ = record(train)
    assert sorted(rows.names(0, -1, "consume", "gradient")) == ["scale", "weight"]


def test_tied_parameters_come_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight

    def train(recorder: Recorder) -> None:
        model(X).mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()

    rows, _ = record(train)
    assert rows.names(0, -1, "update", "parameter") == ["0.weight"]


def test_a_sparse_gradient_is_recorded_dense() -> None:
    def train(recorder: Recorder) -> None:
        model = nn.Embedding(3, 1, sparse=True)
        model(torch.tensor([1, 1])).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()

    rows, _ = record(train)
    assert rows.at(0, -1, "consume", "gradient") == [[0.0], [2.0], [0.0]]


# Forwards that train nothing


def test_a_forward_that_no_backward_reaches_has_no_address() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(X)  # to see that it fits
        kept = job_loss(recorder, model, {"x": X + 5, "id": [9]})
        for number in range(2):
            job_loss(recorder, model, {"x": X, "id": [number]}).backward()
            optimizer.step()
            optimizer.zero_grad()
            kept = job_loss(recorder, model, {"x": X + 5, "id": [9]})  # an evaluation with a graph
        assert kept.requires_grad

    rows, recorder = record(train)
    assert (recorder.updates, recorder.batches) == (2, 2)
    assert rows.micros() == [(0, 0), (1, 0)]
    assert [rows.at(u, 0, "batch", "batch_ids") for u in range(2)] == [[0], [1]]


def test_a_forward_is_what_it_was_when_it_ran() -> None:
    def train(recorder: Recorder) -> None:
        model, batch = linear(), X.clone()
        loss = job_loss(recorder, model, {"x": batch, "id": [0]})
        with torch.no_grad():
            batch.zero_()
            loss = loss.div_(2) if not loss.requires_grad else loss / 2
        model(X).mean().backward()

    rows, _ = record(train)
    assert rows.at(0, 0, "batch", "input") == X.tolist()

    def halve(recorder: Recorder) -> None:
        job_loss(recorder, linear(), {"x": X, "id": [0]}).div_(2).backward()

    rows, _ = record(halve)
    assert rows.at(0, 0, "forward", "loss") == 2 * rows.at(0, 0, "backward", "objective")


def test_losses_that_one_backward_reaches_are_a_micro_batch_each() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        sum(job_loss(recorder, model, {"x": X, "id": [number]}) for number in range(3)).backward()  # type: ignore[union-attr]
        optimizer.step()

    rows, recorder = record(train)
    assert recorder.batches == 3
    assert [rows.at(0, micro, "batch", "batch_ids") for micro in range(3)] == [[0], [1], [2]]


def test_gradients_of_autograd_grad_have_their_micro_batch() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for number in range(2):
            (gradient,) = torch.autograd.grad(job_loss(recorder, model, {"x": X, "id": [number]}), model.weight)
            model.weight.grad = gradient
            optimizer.step()

    rows, recorder = record(train)
    assert (recorder.updates, recorder.batches) == (2, 2)
    assert [rows.at(u, 0, "batch", "batch_ids") for u in range(2)] == [[0], [1]]


# What happens inside a step


class Own(torch.optim.Optimizer):
    """Plain SGD whose step does something to the gradients as well."""

    def __init__(self, parameters: Any, after: Callable[[Tensor], None]) -> None:
        super().__init__(parameters, {"lr": 0.5})
        self.after = after

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])
                self.after(parameter)


def _clear(parameter: Tensor) -> None:
    parameter.grad = None


def _spoil(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.fill_(7.0)


@pytest.mark.parametrize("after", [_clear, _spoil])
def test_gradients_are_those_that_the_step_began_with(after: Callable[[Tensor], None]) -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        model(X).mean().backward()
        Own(model.parameters(), after).step()

    rows, _ = record(train)
    assert rows.at(0, -1, "consume", "gradient") == [[2.0, 3.0]]


def test_what_others_hang_on_a_step_comes_before_or_behind_it() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + update))
        optimizer.register_step_post_hook(lambda *step: scheduler.step())
        optimizer.register_step_post_hook(lambda *step: optimizer.zero_grad())
        for _ in range(2):
            model(X).mean().backward()
            optimizer.step()
            if not recorder.updates > 1:  # hung on later than the first step
                optimizer.register_step_pre_hook(lambda *step: _double(model.weight))

    rows, _ = record(train)
    assert [rows.at(u, -1, "consume", "learning_rate") for u in range(2)] == [0.5, 0.25]
    assert [rows.at(u, -1, "consume", "gradient") for u in range(2)] == [[[2.0, 3.0]], [[4.0, 6.0]]]


def _double(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def test_nothing_hangs_on_an_optimizer_afterwards() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def train(recorder: Recorder) -> None:
        model(X).mean().backward()
        optimizer.step()

    record(train)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks  # type: ignore[attr-defined]


def test_a_class_that_calls_its_parents_step_makes_one_update() -> None:
    class Child(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)

    def train(recorder: Recorder) -> None:
        torch.optim.SGD(linear().parameters(), lr=0.5)  # from now on the parent's step has hooks too
        model = linear()
        optimizer = Child(model.parameters(), lr=0.5)
        for _ in range(2):
            model(X).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    rows, recorder = record(train)
    assert recorder.updates == 2
    assert rows.at(0, -1, "update", "parameter") == [[1.0, 0.5]]


def test_parameters_are_read_when_the_outermost_step_ends() -> None:
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0].zero_()

    def train(recorder: Recorder) -> None:
        model = linear()
        model(X).mean().backward()
        Outer(torch.optim.SGD(model.parameters(), lr=0.5)).step()

    rows, recorder = record(train)
    assert recorder.updates == 1
    assert rows.at(0, -1, "update", "parameter") == [[0.0, 0.0]]


# Several optimizers in one update


def two_weights() -> nn.Sequential:
    return nn.Sequential(linear(), nn.Linear(1, 1, bias=False))


@pytest.mark.parametrize("contained", [False, True])
def test_optimizers_that_step_one_after_another_make_one_update(contained: bool) -> None:
    class Both(torch.optim.Optimizer):
        def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
            super().__init__([group for part in parts for group in part.param_groups], {})
            self.parts = parts

        def step(self, closure: Any = None) -> None:
            for part in self.parts:
                part.step()

    told: list[int] = []

    def train(recorder: Recorder) -> None:
        recorder.on_update = told.append
        model = two_weights()
        parts = [torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9) for layer in model]
        whole = [Both(parts)] if contained else parts  # type: ignore[list-item]
        for _ in range(2):
            model(X).mean().backward()
            for optimizer in whole:
                optimizer.step()
            model.zero_grad()
            assert told == list(range(1, recorder.updates + 1))

    rows, recorder = record(train)
    assert (recorder.updates, recorder.batches) == (2, 2)
    for update in range(2):
        for place in (("consume", "gradient"), ("consume", "learning_rate"), ("update", "parameter")):
            assert rows.names(update, -1, *place) == ["0.weight", "1.weight"]
        assert rows.names(update, -1, "update", "rng") == GENERATORS
    assert rows.names(0, -1, "schedule", "learning_rate") == ["0.weight", "1.weight"]


def test_an_optimizer_of_each_parameter_may_step_inside_backward() -> None:
    def train(recorder: Recorder) -> None:
        model = two_weights()
        own = {parameter: torch.optim.SGD([parameter], lr=0.5) for parameter in model.parameters()}

        def take(parameter: Tensor) -> None:
            own[parameter].step()
            own[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(take)
        for _ in range(3):
            model(X).mean().backward()

    rows, recorder = record(train)
    assert (recorder.updates, recorder.batches) == (3, 3)
    assert rows.micros() == [(0, 0), (1, 0), (2, 0)]
    assert sorted(rows.names(1, -1, "consume", "gradient")) == ["0.weight", "1.weight"]
    assert sorted(rows.names(1, -1, "update", "parameter")) == ["0.weight", "1.weight"]


def test_the_same_optimizer_twice_makes_two_updates() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(X).mean().backward()
        optimizer.step()
        optimizer.step()

    assert record(train)[1].updates == 2


def test_a_model_is_read_when_copies_of_its_parameters_were_written_back() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        master = model.weight.detach().clone().requires_grad_()
        optimizer = torch.optim.SGD([master], lr=0.5)
        for _ in range(2):
            model(X).mean().backward()
            master.grad, model.weight.grad = model.weight.grad, None
            optimizer.step()
            with torch.no_grad():
                model.weight.copy_(master)

    rows, _ = record(train)
    assert [rows.at(u, -1, "update", "parameter") for u in range(2)] == [[[0.0, -0.5]], [[-1.0, -2.0]]]
    assert rows.names(0, -1, "consume", "gradient") == ["parameter[0]"]
    assert "weight.optimized" not in rows.names(-1, -1, "start", "hyperparameter")


def test_a_parameter_that_an_optimizer_lost_is_not_optimized() -> None:
    def train(recorder: Recorder) -> None:
        model = two_weights()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model[1] = nn.Linear(1, 1, bias=False)
        model(X).mean().backward()
        optimizer.step()

    rows, _ = record(train)
    assert "1.weight.optimized" in rows.names(-1, -1, "start", "hyperparameter")


def test_optimizers_that_were_made_before_make_one_update_too() -> None:
    model = two_weights()
    parts = [torch.optim.SGD(layer.parameters(), lr=0.5) for layer in model]

    def train(recorder: Recorder) -> None:
        for _ in range(2):
            model(X).mean().backward()
            for optimizer in parts:
                optimizer.step()

    rows, recorder = record(train)
    assert recorder.updates == 2
    assert rows.names(0, -1, "update", "parameter") == ["0.weight", "1.weight"]


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_skipped_step_is_of_the_optimizers_that_would_have_stepped(skipped: int) -> None:
    class Both(torch.optim.Optimizer):
        def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
            super().__init__([group for part in parts for group in part.param_groups], {})
            self.parts = parts

        def step(self, closure: Any = None) -> None:
            for part in self.parts:
                part.step()

    def train(recorder: Recorder) -> None:
        model = two_weights()
        optimizer = Both([torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9) for layer in model])
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for update in range(3):
            scale = float("inf") if update == skipped else 1.0
            scaler.scale(model(X).mean() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    rows, recorder = record(train)
    assert recorder.updates == 3
    assert [rows.at(u, -1, "update", "scaler", "scale") for u in range(3)].count(4.0) == skipped
    for update in range(3):
        assert rows.names(update, -1, "consume", "learning_rate") == ["0.weight", "1.weight"]
    state = ["0.weight.momentum_buffer", "1.weight.momentum_buffer"]
    assert [rows.names(u, -1, "update", "optimizer_state") for u in range(3)] == [
        [] if skipped == 0 else state,
        state,
        state,
    ]


def test_a_block_that_is_recomputed_has_its_names_though_nothing_around_it_is_a_module() -> None:
    def train(recorder: Recorder) -> None:
        first, block = linear(), nn.Sequential(nn.Linear(1, 1), nn.Tanh())
        optimizer = torch.optim.SGD([*first.parameters(), *block.parameters()], lr=0.5)
        for _ in range(2):
            checkpoint(block, first(X), use_reentrant=True).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    rows, _ = record(train)
    names = ["weight", "0.weight", "0.bias"]
    assert rows.names(-1, -1, "start", "parameter") == names
    for update in range(2):
        assert rows.names(update, -1, "update", "parameter") == names
        assert rows.names(update, -1, "consume", "gradient") == names


def test_a_loss_that_is_kept_keeps_no_batch() -> None:
    model, batches, losses = linear(), [torch.full((3, 2), 123.0) for _ in range(2)], []

    def train(recorder: Recorder) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for number, batch in enumerate(batches):
            losses.append(job_loss(recorder, model, {"x": batch, "id": [number]}))
            losses[-1].backward()
            optimizer.step()

    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        train(recorder)
    alike = [one for one in gc.get_objects() if type(one) is Tensor and one.shape == batches[0].shape]
    assert len([one for one in alike if torch.equal(one, batches[0])]) == len(batches)
    assert len(losses) == 2


def test_a_recorder_that_is_installed_again_sees_the_same_optimizer() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    recorder = Recorder(lambda address, value: None, lambda: None)
    for _ in range(3):
        with recorder:
            model(X).mean().backward()
            optimizer.step()
        optimizer.step()
    assert recorder.updates == 3
