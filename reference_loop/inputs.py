"""The tensors that a model is given, by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn


def named_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of one call of `module`, under the name of its argument.

    Positional arguments take the names of the forward's signature. One level of dicts, lists and tuples is opened:
    `argument.key`.
    """
    for name, value in {**_by_position(module, args), **kwargs}.items():
        if isinstance(value, torch.Tensor):
            yield name, value.detach()
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{key}", v.detach()) for key, v in value.items() if isinstance(v, torch.Tensor))
        elif isinstance(value, list | tuple):
            yield from ((f"{name}.{i}", v.detach()) for i, v in enumerate(value) if isinstance(v, torch.Tensor))


def _by_position(module: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    if not args:
        return {}
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {names[i] if i < len(names) else f"args.{i}": value for i, value in enumerate(args)}
