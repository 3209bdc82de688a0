"""Which parameters decay: one rule for each value of the knob `optimizer.decay_set`."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

NORMS: tuple[type[nn.Module], ...] = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)

# What transformers' Trainer takes for a bias or a norm, searched in lower-case names since 4.54.
NAME_PATTERNS = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decays(decay_set: str, model: nn.Module) -> dict[str, bool]:
    """Whether each parameter decays, by name, in the order of `model.named_parameters()`; tied ones once."""
    rule = RULES[decay_set]
    return {name: rule(name, parameter, _owners(model, name)) for name, parameter in model.named_parameters()}


def _owners(model: nn.Module, name: str) -> list[nn.Module]:
    """The modules that hold a parameter, from the outermost below `model` to the one it belongs to."""
    owners, module = [], model
    for part in name.split(".")[:-1]:
        module = getattr(module, part)
        owners.append(module)
    return owners


Rule = Callable[[str, torch.Tensor, list[nn.Module]], bool]


def _no_bias(name: str, parameter: torch.Tensor, owners: list[nn.Module]) -> bool:
    return not name.endswith("bias")


def _no_bias_norm(name: str, parameter: torch.Tensor, owners: list[nn.Module]) -> bool:
    return not name.endswith("bias") and not any(isinstance(owner, NORMS) for owner in owners)


def _no_bias_layer_norm(name: str, parameter: torch.Tensor, owners: list[nn.Module]) -> bool:
    """As `Trainer.get_decay_parameter_names` of transformers 4.46 decides: by type alone, but for the word bias."""
    return "bias" not in name and not any(isinstance(owner, nn.LayerNorm) for owner in owners)


def _names(name: str, parameter: torch.Tensor, owners: list[nn.Module]) -> bool:
    """As `Trainer.get_decay_parameter_names` decides: by name, and torch's LayerNorm by its type."""
    layer_norm = any(isinstance(owner, nn.LayerNorm) for owner in owners)
    return not layer_norm and NAME_PATTERNS.search(name.lower()) is None


RULES: dict[str, Rule] = {
    "all": lambda name, parameter, owners: True,
    "no_bias": _no_bias,
    "no_bias_norm": _no_bias_norm,
    "no_bias_layer_norm": _no_bias_layer_norm,
    "names": _names,
    "matrices": lambda name, parameter, owners: parameter.ndim >= 2,
}
