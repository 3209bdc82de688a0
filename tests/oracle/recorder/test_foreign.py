"""Optimizers of other libraries, shown by stand-ins; the libraries' classes are imitated, so that none is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from oracle.recorder.foreign import Fastai, Keras, Zero, stand_in
from oracle.recorder.probes import Recorder
from reference_loop.moments import Address


def recorded(train: Any) -> tuple[dict[Address, Any], Recorder]:
    """What a run with a recorder put, by address."""
    rows: dict[Address, Any] = {}

    def put(address: Address, value: Any) -> None:
        rows[address] = value.tolist() if isinstance(value, torch.Tensor) else value

    recorder = Recorder(put, lambda: None)
    with recorder:
        train(recorder)
        recorder.finish()
    return rows, recorder


def at(rows: dict[Address, Any], update: int, moment: str, kind: str) -> dict[str, Any]:
    """Name to value of one kind of an update."""
    return {a.name: value for a, value in rows.items() if (a.update, a.moment, a.kind) == (update, moment, kind)}


def library(package: str, name: str, **members: Any) -> type:
    """A class as that of a library."""
    return type(name, (), {**members, "__module__": f"{package}.optimizer"})


def averaged(self: Any) -> None:
    """A step that averages the gradient as fastai's Adam does."""
    for parameters, hyper in zip(self.param_lists, self.hypers, strict=True):
        for p in parameters:
            kept = self.state.setdefault(p, {})
            kept["step"] = kept.get("step", 0) + 1
            kept["grad_avg"] = kept.get("grad_avg", torch.zeros_like(p)) * hyper["mom"] + p.grad * (1 - hyper["mom"])
            kept["sqr_avg"] = p.grad**2
            p.data -= hyper["lr"] * kept["grad_avg"]


def fastai(model: torch.nn.Module) -> Any:
    """fastai's optimizer, as far as a stand-in looks at it."""
    optimizer = library("fastai", "Optimizer", step=averaged)()
    optimizer.param_lists = [list(model.parameters())]
    optimizer.hypers = [{"lr": 0.5, "wd": 0.01, "mom": 0.5, "sqr_mom": 0.99, "eps": 1e-5}]
    optimizer.state = {model.bias: {"do_wd": False}}
    return optimizer


def linear() -> torch.nn.Linear:
    """Weights and bias of 0."""
    model = torch.nn.Linear(2, 1)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


X = torch.tensor([[1.0, 2.0]])


def test_fastai_s_optimizer_is_recorded_under_torch_s_names() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = fastai(model)
        recorder.attach(model=model, optimizer=optimizer)
        for _ in range(2):
            model(X).sum().backward()
            optimizer.step()
            model.zero_grad()

    rows, recorder = recorded(train)
    assert recorder.updates == 2
    assert at(rows, 0, "consume", "gradient") == {"weight": [[1.0, 2.0]], "bias": [1.0]}
    assert at(rows, 0, "consume", "learning_rate") == {"weight": 0.5, "bias": 0.5}
    state = at(rows, 1, "update", "optimizer_state")
    assert state["weight.exp_avg"] == [[0.75, 1.5]] and state["weight.exp_avg_sq"] == [[1.0, 4.0]]
    assert state["weight.step"] == 2.0
    hyper = at(rows, -1, "start", "hyperparameter")
    assert hyper["weight.betas"] == [0.5, 0.99] and hyper["weight.eps"] == 1e-5
    assert hyper["weight.weight_decay"] == 0.01 and hyper["bias.weight_decay"] == 0.0


def test_reading_changes_nothing() -> None:
    def final(watched: bool) -> list[float]:
        model = linear()
        optimizer = fastai(model)
        recorder = Recorder(lambda address, value: None, lambda: None)
        if watched:
            recorder.install()
            recorder.attach(model=model, optimizer=optimizer)
        for _ in range(3):
            model(X).square().sum().backward()
            optimizer.step()
            model.zero_grad()
        recorder.uninstall()
        assert "step" not in vars(optimizer)
        return [p.tolist() for p in model.parameters()]

    assert final(True) == final(False)


def test_a_step_that_a_scaler_was_asked_about_under_another_object_is_counted_once() -> None:
    """fastai's callback gives itself to the scaler, and steps the optimizer only where that did not skip."""
    told: list[bool] = []

    class Callback:
        def __init__(self, optimizer: Any) -> None:
            self.param_groups = [{"params": parameters} for parameters in optimizer.param_lists]

        def step(self) -> None:
            told.append(True)

    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = fastai(model)
        recorder.attach(model=model, optimizer=optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
        callback = Callback(optimizer)
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(model(X).sum() * factor).backward()
            before = len(told)
            scaler.step(callback)
            if len(told) > before:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
                optimizer.step()
            scaler.update()
            model.zero_grad()

    rows, recorder = recorded(train)
    assert recorder.updates == 3 and len(told) == 2
    assert [at(rows, u, "consume", "scaler")["scale"] for u in range(3)] == [4.0, 4.0, 2.0]
    assert [at(rows, u, "update", "scaler")["scale"] for u in range(3)] == [4.0, 2.0, 2.0]
    assert at(rows, 1, "update", "optimizer_state")["weight.step"] == 1.0
    assert at(rows, -1, "start", "hyperparameter")["max_norm"] == 100.0  # a skipped update says nothing of it
    assert "max_norm" not in at(rows, 1, "consume", "hyperparameter")


def keras(model: torch.nn.Module, **own: Any) -> Any:
    """A Keras optimizer that makes a step of every second `apply`."""

    def update(self: Any, gradients: Any, variables: Any, rate: Any) -> None:
        for v, gradient in zip(variables, gradients, strict=True):
            v.value.data -= float(rate) * gradient

    members = {"_backend_update_step": update, "_use_weight_decay": lambda self, v: v.name != "bias"}
    optimizer = library("keras.src", "BaseOptimizer", **members)()
    variables = [SimpleNamespace(name=name, value=p) for name, p in model.named_parameters()]
    vars(optimizer).update(
        {"_trainable_variables": variables, "iterations": 0, "learning_rate": 0.5, "weight_decay": 0.1}, **own
    )
    vars(optimizer).update(global_clipnorm=2.0, clipvalue=None)
    return optimizer


def test_a_keras_optimizer_takes_what_it_was_handed_and_not_what_the_parameters_hold() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        velocity = SimpleNamespace(value=torch.full((1, 2), -0.25))
        optimizer = keras(model, momentum=0.9, nesterov=False, momentums=[velocity, velocity])
        recorder.attach(model=model, optimizer=optimizer)
        for _ in range(2):
            model(X).sum().backward()
        gradients = [p.grad / 2 for p in model.parameters()]
        optimizer._backend_update_step(gradients, optimizer._trainable_variables, 0.5)

    rows, recorder = recorded(train)
    assert recorder.updates == 1
    assert at(rows, 0, "consume", "gradient")["weight"] == [[1.0, 2.0]]
    assert at(rows, 0, "update", "optimizer_state")["weight.momentum_buffer"] == [[0.5, 0.5]]
    hyper = at(rows, -1, "start", "hyperparameter")
    assert (hyper["weight.weight_decay"], hyper["bias.weight_decay"]) == (0.1, 0.0)
    assert hyper["weight.momentum"] == 0.9
    assert hyper["max_norm"] == 2.0 and "max_value" not in hyper


def zero(model: torch.nn.Module) -> Any:
    """DeepSpeed's ZeRO: a flat copy of both parameters, stepped by torch's Adam."""
    parameters = list(model.parameters())
    flat = torch.nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    start = 0
    for p in parameters:
        p._hp_mapping = SimpleNamespace(hp_fragment_address=SimpleNamespace(start=start, numel=p.numel()))
        start += p.numel()

    def step(self: Any) -> None:
        flat.grad = torch.cat([p.grad.flatten() for p in parameters]) / 2
        self.optimizer.step()
        for p in parameters:
            place = p._hp_mapping.hp_fragment_address
            p.data.copy_(flat.detach()[place.start : place.start + place.numel].view(p.shape))

    optimizer = library("deepspeed", "DeepSpeedZeroOptimizer", step=step)()
    optimizer.optimizer = torch.optim.Adam([flat], lr=0.5)
    optimizer.clip_grad = 0.5
    optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups = [parameters], [flat]
    return optimizer


def test_zero_s_flat_tensors_are_cut_into_parameters_and_its_inner_step_is_not_counted() -> None:
    def train(recorder: Recorder) -> None:
        model = linear()
        optimizer = zero(model)
        recorder.attach(model=model, optimizer=optimizer)
        for _ in range(2):
            model(X).sum().backward()
            optimizer.step()
            model.zero_grad()

    rows, recorder = recorded(train)
    assert recorder.updates == 2 and recorder.nameless == 0
    assert at(rows, 0, "consume", "gradient") == {"weight": [[0.5, 1.0]], "bias": [0.5]}
    state = at(rows, 1, "update", "optimizer_state")
    assert state["weight.step"] == 2.0 and len(state["weight.exp_avg"][0]) == 2 and len(state["bias.exp_avg"]) == 1
    assert at(rows, 0, "update", "parameter")["weight"] != [[0.0, 0.0]]
    hyper = at(rows, -1, "start", "hyperparameter")
    assert hyper["weight.betas"] == [0.9, 0.999] and hyper["max_norm"] == 0.5


def test_only_known_libraries_have_a_stand_in() -> None:
    model = linear()
    assert isinstance(stand_in(fastai(model)), Fastai)
    assert isinstance(stand_in(keras(model)), Keras)
    assert isinstance(stand_in(zero(model)), Zero)
    other = library("elsewhere", "Optimizer")()
    assert stand_in(other) is other
