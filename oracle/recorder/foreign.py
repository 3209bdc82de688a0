"""Optimizers that are none of torch.optim, shown as if they were: one stand-in for each library that has its own.

A stand-in has `param_groups` and `state` with torch.optim's names, and may have

    stepped_by: (object, name of its method) that makes a step; without it, the stand-in's own `step`.
    took: called with that method's arguments when a step begins; returns the gradients that it takes, by the identity
        of the parameter. Without it, they are what `parameter.grad` holds then.
    limits: thresholds by which the step itself clips them, `max_norm` or `max_value` to number.

Anybody's own optimizer can be shown by such an object, see docs/recording.md. Reading changes nothing: what is computed
here are new tensors and plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Groups = list[dict[str, Any]]


def stand_in(optimizer: Any) -> Any:
    """What shows an optimizer; the optimizer itself where its library is none of these."""
    for kind in type(optimizer).__mro__:
        if (show := SHOWN.get((kind.__module__.partition(".")[0], kind.__name__))) is not None:
            return show(optimizer)
    return optimizer


class Fastai:
    """fastai's own `Optimizer`, whose `hypers` and `state` have names of their own."""

    def __init__(self, optimizer: Any) -> None:
        self._of = optimizer
        self.stepped_by = (optimizer, "step")

    @property
    def param_groups(self) -> Groups:
        """One group for each of its own, and one more for what of it does not decay."""
        groups: Groups = []
        for parameters, hyper in zip(self._of.param_lists, self._of.hypers, strict=True):
            named = {"lr": float(hyper["lr"]), "weight_decay": hyper["wd"], **_averages(hyper)}
            decaying = [p for p in parameters if self._decays(p)]
            spared = [p for p in parameters if not self._decays(p)]
            groups += [{"params": decaying, **named}, {"params": spared, **named, "weight_decay": 0.0}]
        return groups

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """What it keeps of each parameter."""
        return {p: self._named(p) for parameters in self._of.param_lists for p in parameters}

    def _decays(self, parameter: Tensor) -> bool:
        return bool(self._of.state.get(parameter, {}).get("do_wd", True))

    def _named(self, parameter: Tensor) -> dict[str, Any]:
        kept = self._of.state.get(parameter, {})
        average = "exp_avg" if "sqr_avg" in kept else "momentum_buffer"
        names = {"grad_avg": average, "sqr_avg": "exp_avg_sq", "step": "step"}
        return {name: _counted(kept[key]) for key, name in names.items() if key in kept}


def _averages(hyper: dict[str, Any]) -> dict[str, Any]:
    """fastai's numbers for the averages, as torch.optim calls them."""
    if "sqr_mom" not in hyper:
        return {"momentum": hyper.get("mom", 0)}
    return {"betas": (hyper["mom"], hyper["sqr_mom"]), "eps": hyper["eps"]}


class Keras:
    """An optimizer of Keras on torch: it accumulates and clips by itself, and `_backend_update_step` makes a step.

    `momentum_buffer` is its velocity divided by the negative learning rate: the velocity has the rate in it.
    """

    def __init__(self, optimizer: Any) -> None:
        self._of = optimizer
        self.stepped_by = (optimizer, "_backend_update_step")
        self._steps, self._rate = 0, 0.0

    def took(self, gradients: Any, variables: Any, learning_rate: Any) -> dict[int, Tensor]:
        """A step begins with these gradients: divided and clipped."""
        self._rate = float(learning_rate)
        self._steps = int(self._of.iterations) + 1
        return {id(v.value): gradient.detach().clone() for v, gradient in zip(variables, gradients, strict=True)}

    @property
    def limits(self) -> dict[str, float]:
        """What it clips by."""
        asked = {"max_norm": self._of.global_clipnorm, "max_value": self._of.clipvalue}
        return {name: limit for name, limit in asked.items() if limit}

    @property
    def param_groups(self) -> Groups:
        """The variables that decay, and those that do not. The rate is that of the next step."""
        of, variables = self._of, self._of._trainable_variables
        named: dict[str, Any] = {"lr": float(of.learning_rate), "weight_decay": of.weight_decay or 0.0}
        if hasattr(of, "beta_1"):
            named |= {"betas": (of.beta_1, of.beta_2), "eps": of.epsilon, "amsgrad": of.amsgrad}
        elif hasattr(of, "momentum"):
            named |= {"momentum": of.momentum, "nesterov": of.nesterov}
        decaying = [v.value for v in variables if of._use_weight_decay(v)]
        spared = [v.value for v in variables if not of._use_weight_decay(v)]
        return [{"params": decaying, **named}, {"params": spared, **named, "weight_decay": 0.0}]

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """What it keeps of each variable."""
        return {v.value: dict(self._named(index)) for index, v in enumerate(self._of._trainable_variables)}

    def _named(self, index: int) -> Iterator[tuple[str, Any]]:
        kept = {
            "exp_avg": "_momentums",
            "exp_avg_sq": "_velocities",
            "max_exp_avg_sq": "_velocity_hats",
            "momentum_buffer": "momentums",
        }
        for name, own in kept.items():
            if held := getattr(self._of, own, None):
                value = held[index].value.detach()
                yield name, value / -self._rate if own == "momentums" and self._rate else value
        if hasattr(self._of, "_momentums"):
            yield "step", _counted(self._steps)


class Zero:
    """DeepSpeed's ZeRO 1 and 2: flat copies, of which each parameter has a fragment, stepped by a torch optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self._of = optimizer
        self.stepped_by = (optimizer, "step")
        self._taken: dict[int, Tensor] = {}
        optimizer.optimizer.register_step_pre_hook(self._see)

    def took(self, *args: Any, **kwargs: Any) -> dict[int, Tensor]:
        """A step begins; what it takes is put in while it goes on, divided and clipped."""
        self._taken = {}
        return self._taken

    @property
    def limits(self) -> dict[str, float]:
        """What it clips by."""
        return {"max_norm": self._of.clip_grad} if self._of.clip_grad else {}

    @property
    def param_groups(self) -> Groups:
        """The torch optimizer's groups, with the model's own parameters."""
        return [
            {**group, "params": list(parameters)}
            for parameters, group in zip(self._of.bit16_groups, self._of.optimizer.param_groups, strict=True)
        ]

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """The torch optimizer's state, cut into parameters; what is no such tensor is of all alike."""
        found: dict[Tensor, dict[str, Any]] = {}
        for parameter, flat in self._fragments():
            kept = self._of.optimizer.state.get(flat, {})
            found[parameter] = {
                key: self._cut(value, parameter) if getattr(value, "shape", None) == flat.shape else value
                for key, value in kept.items()
            }
        return found

    def _fragments(self) -> Iterator[tuple[Tensor, Tensor]]:
        for parameters, flat in zip(self._of.bit16_groups, self._of.single_partition_of_fp32_groups, strict=True):
            yield from ((parameter, flat) for parameter in parameters)

    def _cut(self, flat: Tensor, parameter: Any) -> Tensor:
        """The fragment of a flat tensor that belongs to a parameter, in its shape."""
        place = parameter._hp_mapping.hp_fragment_address
        return flat.narrow(0, place.start, place.numel).view(parameter.shape)

    def _see(self, *args: Any) -> None:
        """The torch optimizer steps, one group at a time."""
        for parameter, flat in self._fragments():
            if flat.grad is not None:
                self._taken[id(parameter)] = self._cut(flat.grad, parameter).detach().clone()


class Zero3(Zero):
    """DeepSpeed's ZeRO 3: groups are stepped in parts, and a part's flat tensor is in its group for that time alone."""

    @property
    def param_groups(self) -> Groups:
        """The torch optimizer's groups, with the model's own parameters."""
        groups: Groups = [{**group, "params": []} for group in self._of.optimizer.param_groups]
        for part, parameters in enumerate(self._of.fp16_groups):
            groups[self._of.sub_group_to_group_id[part]]["params"] += parameters
        return groups

    def _fragments(self) -> Iterator[tuple[Tensor, Tensor]]:
        for parameters, flat in zip(self._of.fp16_groups, self._of.fp32_partitioned_groups_flat, strict=True):
            yield from ((parameter, flat) for parameter in parameters)

    def _cut(self, flat: Tensor, parameter: Any) -> Tensor:
        _, start, _ = self._of.grad_position[self._of.get_param_id(parameter)]
        held = parameter.ds_numel  # what comes after it is padding
        return flat.narrow(0, start, held).view(parameter.ds_shape)


CLIPPING = ("deepspeed.runtime.utils",)
"""Modules with a `clip_grad_norm_` of their own, called as torch's is."""


def _counted(value: Any) -> Any:
    """A number of steps as torch.optim keeps it: a scalar tensor. Anything else as it is."""
    return torch.tensor(float(value)) if isinstance(value, int) else value


SHOWN: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("fastai", "Optimizer"): Fastai,
    ("keras", "BaseOptimizer"): Keras,
    ("deepspeed", "DeepSpeedZeroOptimizer"): Zero,
    ("deepspeed", "DeepSpeedZeroOptimizer_Stage3"): Zero3,
}
"""The package and the class that a library's optimizers derive from."""
