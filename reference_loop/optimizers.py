"""One optimizer step on one parameter: SGD, Adam and AdamW in plain tensor operations.

Every function changes the parameter and its state in place and leaves the gradient as it is. Bit for bit they are
torch.optim's single-tensor kernels, for dense real tensors; the state has torch.optim's keys, so that either can load
the other's. On CPU the foreach kernels are the same in float32 and float64; in bfloat16 and float16 they round momentum
and beta2 to that type first. The `fused_` ones are torch's own fused kernels, called one parameter at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]

HIDDEN = "velocity"
"""The key of a state that torch.optim has nothing like: what is shown of it stands under torch's own keys."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {
        "lr": 1e-3,
        "momentum": 0,
        "dampening": 0,
        "weight_decay": 0,
        "nesterov": False,
        "maximize": False,
    },
    "adam": {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0,
        "amsgrad": False,
        "maximize": False,
    },
    "adamw": {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "amsgrad": False,
        "maximize": False,
    },
}
"""What torch.optim's classes take for an argument that nobody states, in torch's own number types."""


@torch.no_grad()
def step(
    name: str,
    parameter: Tensor,
    gradient: Tensor,
    state: State,
    *,
    lr: float,
    decoupled: bool | None = None,
    kernel: str = "loop",
    epsilon: str = "after_correction",
    velocity: str = "gradient",
    **hyper: Any,
) -> None:
    """Take one step: parameter and state change in place.

    name: a key of `DEFAULTS`.
    parameter, gradient: (*S), one real float dtype.
    state: what the last step left, {} before the first. SGD holds `momentum_buffer` (*S) where it has momentum; Adam
        and AdamW hold `step` (a scalar float32 tensor), `exp_avg`, `exp_avg_sq` and, with amsgrad, `max_exp_avg_sq`
        (*S).
    lr: parameter units per unit of direction, the schedule's factor included.
    decoupled: whether weight decay shrinks the parameter before the step instead of joining the gradient; None is what
        torch.optim's class of that name does. SGD has no such form in torch; it gets AdamW's.
    kernel: "fused" is torch's fused kernel, which rounds otherwise; equal to torch.optim's fused=True bit for bit.
        "averages" is fastai's arithmetic of Adam, "steps" Keras's of SGD.
    epsilon: "before_correction" is Adam by Keras's arithmetic. velocity: "step" is SGD's momentum by Keras's.
    hyper: the optimizer's other arguments; what is left out is `DEFAULTS[name]`.

    A parameter whose gradient is None takes no step in torch.optim: do not call this for it. Adam with decoupled decay
    is AdamW, and AdamW with coupled decay is Adam.

    Source: torch/optim/sgd.py `_single_tensor_sgd`, torch/optim/adam.py `_single_tensor_adam`.

    Raises:
        ValueError: no such optimizer.
        TypeError: an argument that this optimizer does not take.
    """
    if name not in DEFAULTS:
        raise ValueError(f"no optimizer {name!r}: there are {', '.join(DEFAULTS)}")
    sgds: dict[str, Callable[..., None]] = {"fused": fused_sgd, "steps": sgd_of_steps}
    adams: dict[str, Callable[..., None]] = {
        "fused": fused_adam, "averages": adam_of_averages, "before_correction": adam_without_correction,
    }  # fmt: skip
    arguments = {**DEFAULTS[name], **hyper, "lr": lr}
    arguments["decoupled"] = name == "adamw" if decoupled is None else decoupled
    if name == "sgd":
        sgds.get("steps" if velocity == "step" else kernel, sgd)(parameter, gradient, state, **arguments)
    else:
        kind = adams.get(epsilon if epsilon == "before_correction" else kernel, adam)
        kind(parameter, gradient, state, **arguments)


def sgd(
    parameter: Tensor,
    gradient: Tensor,
    state: State,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    decoupled: bool,
) -> None:
    """Stochastic gradient descent. The first momentum is the gradient itself: dampening starts at the second step."""
    direction = _direction(parameter, gradient, lr, weight_decay, maximize, decoupled)
    if momentum != 0:
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = direction.clone()
        else:
            state["momentum_buffer"].mul_(momentum).add_(direction, alpha=1 - dampening)
        buffer = state["momentum_buffer"]
        direction = direction.add(buffer, alpha=momentum) if nesterov else buffer
    parameter.add_(direction, alpha=-lr)


def adam(
    parameter: Tensor,
    gradient: Tensor,
    state: State,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
) -> None:
    """Adam, and AdamW where the decay is decoupled. Bias corrections are float64 numbers, computed from `step`."""
    _start_moments(parameter, state, amsgrad)
    beta1, beta2 = betas
    state["step"] += 1
    direction = _direction(parameter, gradient, lr, weight_decay, maximize, decoupled)
    state["exp_avg"].lerp_(direction, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(direction, direction, value=1 - beta2)

    count = state["step"].item()
    correction1 = 1 - beta1**count
    correction2 = 1 - beta2**count
    second_moment = state["exp_avg_sq"]
    if amsgrad:
        second_moment = torch.maximum(state["max_exp_avg_sq"], second_moment, out=state["max_exp_avg_sq"])
    denominator = (second_moment.sqrt() / correction2**0.5).add_(eps)
    parameter.addcdiv_(state["exp_avg"], denominator, value=-(lr / correction1))


def sgd_of_steps(
    parameter: Tensor,
    gradient: Tensor,
    state: State,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    decoupled: bool,
) -> None:
    """SGD whose momentum holds steps: keras/src/backend/torch/optimizers/torch_sgd.py of 3.15.1, without dampening.

    `momentum_buffer` is the velocity divided by the negative rate; it is shown, and the velocity is what counts.
    """
    if decoupled:
        direction = -gradient if maximize else gradient
        _decay_apart(parameter, lr, weight_decay)
    else:
        direction = _direction(parameter, gradient, lr, weight_decay, maximize, decoupled)
    if momentum == 0:
        parameter.add_(direction, alpha=-lr)
        return
    velocity = state.setdefault(HIDDEN, torch.zeros_like(parameter))
    velocity.mul_(momentum).add_(direction, alpha=-lr)
    if nesterov:
        parameter.add_(direction, alpha=-lr).add_(velocity, alpha=momentum)
    else:
        parameter.add_(velocity)
    state["momentum_buffer"] = velocity / -lr if lr else velocity.clone()


def _decay_apart(parameter: Tensor, lr: float, weight_decay: float) -> None:
    """Decoupled decay by a factor of the parameter's type, as keras/src/backend/torch/optimizers/torch_optimizer.py."""
    if weight_decay:
        parameter.mul_(1 - weight_decay * parameter.new_tensor(lr))


def adam_of_averages(
    parameter: Tensor,
    gradient: Tensor,
    state: State,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
) -> None:
    """`adam` in the order of fastai/optimizer.py: weighed sums, and the second moment is corrected before its root."""
    _start_moments(parameter, state, amsgrad)
    beta1, beta2 = betas
    state["step"] += 1
    direction = _direction(parameter, gradient, lr, weight_decay, maximize, decoupled)
    state["exp_avg"].mul_(beta1).add_(direction, alpha=1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(direction, direction, value=1 - beta2)
    count = state["step"].item()
    correction1, correction2 = ((1 - beta) * (1 - beta**count) / (1 - beta) for beta in betas)
    second_moment = state["exp_avg_sq"]
    if amsgrad:
        second_moment = torch.maximum(state["max_exp_avg_sq"], second_moment, out=state["max_exp_avg_sq"])
    denominator = (second_moment / correction2).sqrt() + eps
    parameter.addcdiv_(state["exp_avg"], denominator, value=-lr / correction1)


def adam_without_correction(
    parameter: Tensor,
    gradient: Tensor,
    state: State,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
) -> None:
    """Adam whose epsilon meets a second moment that is not corrected: the corrections are in the rate.

    In the order of keras/src/backend/torch/optimizers/torch_adam.py of 3.15.1, in the parameter's type.
    """
    _start_moments(parameter, state, amsgrad)
    state["step"] += 1
    if decoupled:
        direction = -gradient if maximize else gradient
        _decay_apart(parameter, lr, weight_decay)
    else:
        direction = _direction(parameter, gradient, lr, weight_decay, maximize, decoupled)
    count = state["step"].to(parameter.dtype)
    power1, power2 = (torch.pow(torch.tensor(beta, dtype=parameter.dtype), count) for beta in betas)
    alpha = torch.tensor(lr, dtype=parameter.dtype) * torch.sqrt(1 - power2) / (1 - power1)
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.mul_(betas[0]).add_(direction, alpha=1 - betas[0])
    second.mul_(betas[1]).add_(direction * direction, alpha=1 - betas[1])
    if amsgrad:
        second = torch.maximum(state["max_exp_avg_sq"], second, out=state["max_exp_avg_sq"])
    parameter.add_((first * alpha) / (second.sqrt() + eps), alpha=-1)


def fused_sgd(
    parameter: Tensor,
    gradient: Tensor,
    state: State,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    decoupled: bool,
) -> None:
    """`sgd` by torch's fused kernel, which fills an empty momentum buffer at the first step.

    On CPU, torch 2.12.1 and 2.13.0 leave most of a bfloat16 or float16 parameter as it is and read past its momentum
    buffer (https://github.com/pytorch/pytorch/issues/191763); so does this.
    """
    if decoupled and weight_decay != 0:
        parameter.mul_(1 - lr * weight_decay)
        weight_decay = 0
    first = momentum != 0 and "momentum_buffer" not in state
    if first:
        state["momentum_buffer"] = torch.empty_like(gradient)
    torch._fused_sgd_(
        [parameter],
        [gradient],
        [state["momentum_buffer"]] if momentum != 0 else [],
        lr=lr,
        momentum=momentum,
        dampening=dampening,
        weight_decay=weight_decay,
        nesterov=nesterov,
        maximize=maximize,
        is_first_step=first,
        grad_scale=None,
        found_inf=None,
    )


def fused_adam(
    parameter: Tensor,
    gradient: Tensor,
    state: State,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
) -> None:
    """`adam` by torch's fused kernel, which reads `step` where the parameter is and does not count it up."""
    _start_moments(parameter, state, amsgrad, fused=True)
    state["step"] += 1
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        [parameter],
        [gradient],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [state["max_exp_avg_sq"]] if amsgrad else [],
        [state["step"]],
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=amsgrad,
        maximize=maximize,
        grad_scale=None,
        found_inf=None,
    )


def _direction(
    parameter: Tensor, gradient: Tensor, lr: float, weight_decay: float, maximize: bool, decoupled: bool
) -> Tensor:
    """What the step goes against: the gradient, turned round to maximize, with coupled decay added.

    Decoupled decay shrinks the parameter here, before the step. A decay of 0 touches nothing.
    """
    direction = -gradient if maximize else gradient
    if weight_decay == 0:
        return direction
    if decoupled:
        parameter.mul_(1 - lr * weight_decay)
        return direction
    return direction.add(parameter, alpha=weight_decay)


def _start_moments(parameter: Tensor, state: State, amsgrad: bool, fused: bool = False) -> None:
    """Fill an empty state with zeros. `step` is counted on the CPU, except for a fused kernel."""
    if state:
        return
    wide = torch.get_default_dtype() == torch.float64 and not fused
    state["step"] = torch.zeros(
        (), dtype=torch.float64 if wide else torch.float32, device=parameter.device if fused else "cpu"
    )
    for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if amsgrad else ("exp_avg", "exp_avg_sq"):
        state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
