"""Limiting the gradients of one update, by their norm or element by element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype


@torch.no_grad()
def clip_norm(gradients: Sequence[Tensor], max_norm: float, kernel: str = "norms") -> Tensor:
    """Scale gradients in place so that their 2-norm, all together, is at most `max_norm`; returns the norm before.

    gradients: (*S) each, any shapes and float dtypes; without the Nones of parameters that got no gradient.
    max_norm: in units of the gradients; inf clips nothing.
    kernel: of the same formula; "squares" adds up squared norms; "reciprocal" adds them up in float64, goes on in
        float32, and divides 1 by norm / max_norm; "float64" does all of that in float64.
    Returns a scalar tensor in the dtype that the gradients' dtypes promote to; 0 for no gradients.

    The factor is max_norm / (norm + 1e-6), at most 1, and always multiplied in. A norm that is infinite makes it 0 and
    one that is NaN makes it NaN: neither is reported.

    Bit-identical to torch.nn.utils.clip_grad_norm_ with its default arguments. Source: torch/nn/utils/clip_grad.py.
    "squares" is `clip_grad_norm_` of deepspeed/runtime/utils.py, "reciprocal" `scaled_global_norm` and
    `unscale_and_clip_grads` of deepspeed/runtime/zero/stage_1_and_2.py, "float64" those of stage3.py, all of 0.19.8.
    """
    if not gradients:
        return torch.tensor(0.0)
    dtype = torch.float64 if kernel in ("reciprocal", "float64") else None
    norms = torch.stack([torch.linalg.vector_norm(gradient, dtype=dtype) for gradient in _in_torch_order(gradients)])
    if kernel == "norms":
        total = torch.linalg.vector_norm(norms)
    else:
        squares = norms.pow(2.0).sum()
        total = (squares.float() if kernel == "reciprocal" else squares).pow(0.5)
    if dtype is not None:
        factor = 1.0 / ((total + 1e-6) / max_norm).clamp(min=1.0)
    elif kernel == "squares":
        factor = (torch.full_like(total, max_norm) / (total + 1e-6)).clamp(max=1.0)
    else:  # torch divides a number by a tensor as number * (1 / tensor)
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return total


@torch.no_grad()
def clip_norm_exactly(gradients: Sequence[Tensor], max_norm: float) -> Tensor:
    """`clip_norm` with a factor of max_norm / norm, and no 1e-6 beside the norm; returns the norm before.

    Bit-identical to `clip_by_global_norm` of keras/src/optimizers/base_optimizer.py of 3.15.1, on torch.
    """
    if not gradients:
        return torch.tensor(0.0)
    total = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    if max_norm == inf:
        return total
    factor = max_norm * torch.minimum(1.0 / total, torch.ones_like(total) * (1.0 / max_norm)) + (total - total)
    for gradient in gradients:
        gradient.mul_(factor)
    return total


@torch.no_grad()
def clip_value(gradients: Sequence[Tensor], max_value: float) -> None:
    """Limit every element of the gradients to -max_value...max_value, in place; NaN stays NaN.

    gradients: (*S) each, any shapes and float dtypes.
    max_value: in units of the gradients.

    Bit-identical to torch.nn.utils.clip_grad_value_. Source: torch/nn/utils/clip_grad.py.
    """
    for gradient in gradients:
        gradient.clamp_(min=-max_value, max=max_value)


def _in_torch_order(gradients: Sequence[Tensor]) -> Iterator[Tensor]:
    """The gradients in the order in which torch adds up their norms.

    That is their own order within a device and dtype. The order of those groups is a C++ hash map's, so that only torch
    itself can tell it; where dtypes are mixed it decides the last bit of the norm.
    """
    for (group,), _ in _group_tensors_by_device_and_dtype([list(gradients)]).values():
        yield from (gradient for gradient in group if gradient is not None)
