"""The written-out optimizers are torch.optim, bit for bit, state included."""

from __future__ import annotations

import inspect
import itertools
import random

import pytest
import torch
from torch import Tensor

from reference_loop.optimizers import DEFAULTS, State, step

CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
KERNEL = {False: "loop", True: "fused"}
SHAPES = [(), (1,), (3, 5), (2, 3, 4), (67,), (5, 0)]


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor: signed zeros and NaN payloads are told apart."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(ours: Tensor, theirs: Tensor, what: object) -> None:
    assert (ours.dtype, ours.shape, ours.device) == (theirs.dtype, theirs.shape, theirs.device), what
    assert torch.equal(bits(ours), bits(theirs)), what


def draw(name: str, dice: random.Random) -> dict:
    """Random arguments of one optimizer; some left to the default, rates and decays of 0 among them."""
    hyper: dict = {"lr": dice.choice([0, 1e-3, 0.1, 10 ** dice.uniform(-5, 0)])}
    if dice.random() < 0.7:
        hyper["weight_decay"] = dice.choice([0, 0.0, 0.01, 0.3, dice.random()])
    if dice.random() < 0.3:
        hyper["maximize"] = True
    if name == "sgd":
        if dice.random() < 0.7:
            hyper["momentum"] = dice.choice([0.9, dice.random()])
            if dice.random() < 0.5:
                hyper["nesterov"] = True
            else:
                hyper["dampening"] = dice.choice([0, 0.5, dice.random()])
    else:
        if dice.random() < 0.7:
            hyper["betas"] = (dice.choice([0.0, 0.9, dice.random()]), dice.choice([0.0, 0.999, dice.random()]))
        if dice.random() < 0.5:
            hyper["eps"] = dice.choice([0.0, 1e-8, 1e-3])
        if dice.random() < 0.4:
            hyper["amsgrad"] = True
    return hyper


def gradient_like(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """A random gradient over many magnitudes, with zeros of both signs and now and then an inf or NaN."""
    shape = parameter.shape
    gradient = torch.randn(shape, generator=generator) * 10 ** torch.randint(-6, 4, shape, generator=generator)
    pick = torch.rand(shape, generator=generator)
    gradient[pick < 0.05] = 0.0
    gradient[(pick >= 0.05) & (pick < 0.1)] = -0.0
    gradient[pick > 0.995] = float("inf")
    gradient[pick > 0.998] = float("nan")
    return gradient.to(parameter.dtype)


def compare(name: str, hyper: dict, dtype: torch.dtype, seed: int, steps: int = 4, **implementation: bool) -> None:
    """Train the same parameters by ours and by torch.optim, and compare parameters and states after each step."""
    generator = torch.Generator().manual_seed(seed)
    start = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    theirs = [torch.nn.Parameter(value.clone()) for value in start]
    ours = [torch.nn.Parameter(value.clone()) for value in start]
    states: list[State] = [{} for _ in ours]
    options = dict(hyper)
    decoupled = options.pop("decoupled", None)
    optimizer = CLASSES[name](theirs, **options, **implementation)
    if decoupled is not None:
        optimizer.param_groups[0]["decoupled_weight_decay"] = decoupled
    for _ in range(steps):
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            gradient = gradient_like(mine, generator)
            other.grad = gradient.clone()
            step(name, mine, gradient, states[index], kernel=KERNEL[implementation.get("fused", False)], **hyper)
        optimizer.step()
        for mine, other, state in zip(ours, theirs, states, strict=True):
            where = (name, hyper, dtype, tuple(mine.shape))
            assert_same(mine, other, where)
            expected = optimizer.state[other]
            assert set(state) == set(expected), where
            for key in expected:
                assert_same(state[key], expected[key], (*where, key))
        hyper = {**hyper, "lr": hyper["lr"] * 0.7}
        optimizer.param_groups[0]["lr"] = hyper["lr"]


@pytest.mark.parametrize("name", CLASSES)
def test_200_random_configurations_are_the_single_tensor_kernel(name):
    dice = random.Random(name)
    for seed in range(200):
        dtype = dice.choices([torch.float32, torch.float64, torch.bfloat16], [8, 1, 1])[0]
        compare(name, draw(name, dice), dtype, seed, foreach=False)


@pytest.mark.parametrize("name", CLASSES)
def test_foreach_on_cpu_is_the_same_in_float32_and_float64(name):
    dice = random.Random(f"{name} foreach")
    for seed in range(200):
        dtype = dice.choices([torch.float32, torch.float64], [8, 1])[0]
        compare(name, draw(name, dice), dtype, seed, foreach=True)


def test_foreach_in_bfloat16_rounds_its_factor_first_and_so_is_not_the_same():
    values = torch.linspace(-1, 1, 64).bfloat16()
    by_foreach = values.clone()
    torch._foreach_mul_([by_foreach], 0.9)
    assert not torch.equal(by_foreach, values * 0.9)
    assert_same(by_foreach, values * torch.tensor(0.9).bfloat16(), "factor rounded")


@pytest.mark.parametrize("name", CLASSES)
def test_fused_is_torch_fused(name):
    dice = random.Random(f"{name} fused")
    for seed in range(200):
        # torch 2.13's fused SGD reads past a bfloat16 momentum buffer: it does not even equal itself (pytorch#191763)
        low = 0 if name == "sgd" else 1
        dtype = dice.choices([torch.float32, torch.float64, torch.bfloat16], [8, 1, low])[0]
        compare(name, draw(name, dice), dtype, seed, fused=True)


def test_fused_differs_from_the_loop_by_rounding_only():
    parameter, gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0)), torch.linspace(-1, 1, 1000)
    results = {}
    for fused in (False, True):
        results[fused], state = parameter.clone(), {}
        for _ in range(3):
            step("adamw", results[fused], gradient, state, lr=0.01, kernel=KERNEL[fused])
    assert not torch.equal(results[False], results[True])
    torch.testing.assert_close(results[False], results[True], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_coupled_and_decoupled_decay_are_torch_flag_of_that_name(name, decoupled, fused):
    hyper = {"lr": 0.05, "weight_decay": 0.2, "decoupled": decoupled}
    implementation = {"fused": True} if fused else {"foreach": False}
    compare(name, hyper, torch.float32, 3, **implementation)


@pytest.mark.parametrize("fused", [False, True])
def test_adam_with_decoupled_decay_is_adamw_and_the_reverse_is_adam(fused):
    for decoupled in (False, True):
        results = []
        for name in ("adam", "adamw"):
            parameter, state = torch.linspace(-1, 1, 33), {}
            for _ in range(3):
                options = {"lr": 0.1, "weight_decay": 0.3, "decoupled": decoupled, "kernel": KERNEL[fused]}
                step(name, parameter, torch.linspace(2, 1, 33), state, **options)
            results.append(parameter)
        assert_same(*results, (decoupled, fused))


@pytest.mark.parametrize("fused", [False, True])
def test_sgd_with_decoupled_decay_shrinks_the_parameter_before_a_step_without_decay(fused):
    parameter, gradient = torch.linspace(-1, 1, 33), torch.linspace(2, 1, 33)
    by_hand, states = parameter.clone(), ({}, {})
    for _ in range(3):
        by_hand.mul_(1 - 0.1 * 0.3)
        step("sgd", by_hand, gradient, states[0], lr=0.1, momentum=0.9, kernel=KERNEL[fused])
        options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.3, "decoupled": True, "kernel": KERNEL[fused]}
        step("sgd", parameter, gradient, states[1], **options)
    assert_same(parameter, by_hand, fused)


def test_the_gradient_is_left_as_it_is():
    for name, fused in itertools.product(DEFAULTS, (False, True)):
        gradient = torch.linspace(-1, 1, 33)
        extra = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {"amsgrad": True}
        for maximize in (False, True):
            state: State = {}
            for _ in range(2):
                options = {"lr": 0.1, "weight_decay": 0.1, "maximize": maximize, "kernel": KERNEL[fused], **extra}
                step(name, torch.ones(33), gradient, state, **options)
                assert_same(gradient, torch.linspace(-1, 1, 33), (name, fused))


def test_the_state_loads_into_torch_optim_and_goes_on_identically():
    ours, state = torch.linspace(-1, 1, 33), {}
    gradient = torch.linspace(2, 1, 33)
    step("adamw", ours, gradient, state, lr=0.1, amsgrad=True)
    theirs = torch.nn.Parameter(ours.clone())
    optimizer = torch.optim.AdamW([theirs], lr=0.1, amsgrad=True)
    loaded = {"state": {0: {key: value.clone() for key, value in state.items()}}}
    optimizer.load_state_dict({**optimizer.state_dict(), **loaded})
    theirs.grad = gradient
    optimizer.step()
    step("adamw", ours, gradient, state, lr=0.1, amsgrad=True)
    assert_same(ours, theirs, "resumed")


def test_step_counts_in_float64_where_that_is_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        compare("adam", {"lr": 0.1}, torch.float64, 0, foreach=False)
        compare("adam", {"lr": 0.1}, torch.float64, 0, fused=True)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_those_of_torch_optim_with_their_number_types(name):
    parameters = inspect.signature(CLASSES[name]).parameters
    for argument, value in DEFAULTS[name].items():
        assert repr(value) == repr(parameters[argument].default), argument
    ours_alone = {"params", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
    assert set(parameters) - ours_alone == set(DEFAULTS[name])


def test_an_unknown_optimizer_or_argument_is_refused():
    with pytest.raises(ValueError, match="no optimizer 'lion': there are sgd, adam, adamw"):
        step("lion", torch.ones(1), torch.ones(1), {}, lr=0.1)
    with pytest.raises(TypeError, match="momentum"):
        step("adamw", torch.ones(1), torch.ones(1), {}, lr=0.1, momentum=0.9)
