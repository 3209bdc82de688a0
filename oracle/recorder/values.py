"""The tensors and plain values inside what trainers pass around: batches, outputs, optimizer states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

FLAT = -1  # for a shard's dimension: of the tensor's elements in one row
UNDEALT = (Tensor, torch.nn.Parameter)
PLAIN = (bool, int, float, str)


def readable(value: Any) -> Any:
    """A tensor without its history, and dense; of one that is dealt to ranks this rank's shard; else as it is.

    A parameter under DeepSpeed's ZeRO 3 is empty between its uses; its elements lie in another tensor, in one row.
    """
    if not isinstance(value, Tensor):
        return value
    if (row := getattr(value, "ds_tensor", None)) is not None and value.numel() != value.ds_numel:  # type: ignore[attr-defined]
        value = row.narrow(0, 0, value.ds_numel).view(value.ds_shape)  # type: ignore[attr-defined]
    if type(value) not in UNDEALT and hasattr(value, "to_local"):
        value = value.detach().to_local()  # type: ignore[attr-defined]
    if value.requires_grad:
        value = value.detach()
    return value if value.layout is torch.strided else value.to_dense()


def shard(value: Any) -> tuple[int, int, int] | None:
    """Which part of a tensor this rank holds: (dimension, start, length); None for all of it."""
    if type(value) in UNDEALT or not hasattr(value, "to_local"):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, starts = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    apart = [at for at, length in enumerate(shape) if length != value.shape[at]]
    return (apart[0], starts[apart[0]], shape[apart[0]]) if len(apart) == 1 else None


def flat_shards(model: torch.nn.Module) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield (id, shard) of each parameter that FullyShardedDataParallel keeps a stretch of, seen as one row.

    Without `use_orig_params` parameters have no names there, and nothing is yielded.
    """
    for module in model.modules():
        flat = getattr(getattr(module, "_handle", None), "flat_param", None)
        parameters = getattr(flat, "_params", None) or ()
        for parameter, info in zip(parameters, getattr(flat, "_shard_param_infos", ()), strict=False):
            start = (info.intra_param_start_idx or 0) if info.in_shard else 0
            yield id(parameter), (FLAT, start, info.numel_in_shard if info.in_shard else 0)


def plain(value: Any) -> Any:
    """What JSON can hold of a value: scalars, lists, dicts. A tensor of one element is its number; the rest is None."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else None


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, tensor or scalar) of all that a value holds; what is neither is left out."""
    if isinstance(value, (Tensor, *PLAIN)):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(f"{name}.{index}", item)


def scalar_loss(output: Any) -> Tensor | None:
    """The loss in what a model returns: a scalar, or the one it carries as `loss`; None if there is neither."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif not isinstance(output, Tensor):
        found = getattr(output, "loss", None)
    return found if isinstance(found, Tensor) and found.dim() == 0 else None


def identifiers(batch: Any) -> list[Any] | None:
    """The sample ids that a batch carries as `id`; None if it carries none."""
    found = batch.get("id") if isinstance(batch, Mapping) else None
    if isinstance(found, Tensor):
        return found.tolist()
    return [plain(item) for item in found] if isinstance(found, (list, tuple)) else None


def scaler_state(scaler: Any) -> Iterator[tuple[str, Any]]:
    """Yield a gradient scaler's `scale` and, where it is torch's, `growth_tracker`. None has no state."""
    if isinstance(scaler, torch.amp.GradScaler):
        yield "scale", scaler._scale
        yield "growth_tracker", scaler._growth_tracker
    elif scaler is not None:
        yield "scale", float(scaler.get_scale())


def scaler_arguments(scaler: Any) -> Iterator[tuple[str, float | int]]:
    """Yield what torch's gradient scaler grows and shrinks by; another's arguments are its own affair."""
    if isinstance(scaler, torch.amp.GradScaler):
        yield "growth_factor", scaler.get_growth_factor()
        yield "backoff_factor", scaler.get_backoff_factor()
        yield "growth_interval", scaler.get_growth_interval()
