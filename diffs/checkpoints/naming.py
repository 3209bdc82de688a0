"""Finds the parameters that an optimizer's state belongs to: torch numbers them, in the order that it was given them.

A name is given only where it is certain: the optimizer kept it, or order and shapes of the model's tensors leave one
choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from diffs.checkpoints.stored import Stored

# What transformers' Trainer takes out of weight decay, and so gives to the optimizer last.
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)|(?:^|\.)ln_", re.IGNORECASE)
_BUFFER = re.compile(r"(?:^|\.)(?:running_mean|running_var|num_batches_tracked|inv_freq|position_ids)$")


def is_optimizer(value: Any) -> bool:
    """Whether a value is what torch's optimizers give as their state."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("state"), Mapping)
        and isinstance(value.get("param_groups"), list)
        and all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in value["param_groups"])
    )


def names(saved: Mapping[str, Any], parameters: Mapping[str, Any], ordered: bool) -> dict[Any, str] | None:
    """The parameter's name for each key of an optimizer's state, or None where it is not certain.

    parameters: the model's tensors by name. ordered: whether they stand in the order of the model's own table.
    """
    groups = saved["param_groups"]
    keys = [key for group in groups for key in group["params"]]
    if all(isinstance(key, str) for key in keys):
        return {key: key for key in keys}
    kept = [name for group in groups for name in group.get("param_names") or ()]
    if len(kept) == len(keys):
        return dict(zip(keys, map(str, kept), strict=True))
    candidates = _parameters(parameters)
    shapes = {key: _shape(saved["state"].get(key)) for key in keys}
    if ordered:
        for chosen in (candidates, [name for name in candidates if not _BUFFER.search(name)]):
            for order in (chosen, sorted(chosen, key=lambda name: bool(_NO_DECAY.search(name)))):
                sizes = [len(group["params"]) for group in groups]
                split = order is chosen or (
                    len(sizes) == 2 and sum(1 for n in order if not _NO_DECAY.search(n)) == sizes[0]
                )
                if split and len(groups) == (1 if order is chosen else 2) and _fits(keys, order, shapes, parameters):
                    return dict(zip(keys, order, strict=True))
    return _by_shape(keys, candidates, shapes, parameters)


def _parameters(parameters: Mapping[str, Any]) -> list[str]:
    """The names of floating tensors, tied ones once."""
    seen = set()
    found = []
    for name, tensor in parameters.items():
        if not isinstance(tensor, Stored) or not tensor.dtype.is_floating_point or tensor.place in seen:
            continue
        if tensor.place is not None:
            seen.add(tensor.place)
        found.append(name)
    return found


def _shape(state: Any) -> tuple[int, ...] | None:
    """The shape of the parameter that a state belongs to, where it has a tensor of that shape."""
    known = [value.shape for value in (state or {}).values() if isinstance(value, Stored) and value.shape]
    return known[0] if known and len(set(known)) == 1 else None


def _fits(keys: list[Any], order: list[str], shapes: dict[Any, Any], parameters: Mapping[str, Any]) -> bool:
    return len(keys) == len(order) and all(
        shapes[key] is not None and shapes[key] == parameters[name].shape for key, name in zip(keys, order, strict=True)
    )


def _by_shape(
    keys: list[Any], order: list[str], shapes: dict[Any, Any], parameters: Mapping[str, Any]
) -> dict[Any, str] | None:
    """Names by shapes that occur once on either side; None unless that names all."""
    ours, theirs = Counter(shapes.values()), Counter(parameters[name].shape for name in order)
    by_shape = {parameters[name].shape: name for name in order if theirs[parameters[name].shape] == 1}
    found = {key: by_shape[shapes[key]] for key in keys if ours[shapes[key]] == 1 and shapes[key] in by_shape}
    return found if keys and len(found) == len(keys) else None
