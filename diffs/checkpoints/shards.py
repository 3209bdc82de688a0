"""Reads model weights: one file, or several with an index that says which tensor is in which."""

from __future__ import annotations

from typing import Any

from diffs.checkpoints.files import Files
from diffs.checkpoints.stored import Damaged, Stored

# In the order in which a loader looks for them.
WHOLE = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
)
INDEX = (".safetensors.index.json", ".bin.index.json")


def find(names: set[str]) -> str | None:
    """The file in a folder that holds the weights, or their index."""
    whole = [name for name in WHOLE if name in names]
    index = sorted(name for name in names if name.endswith(INDEX))
    single = sorted(name for name in names if name.endswith(".safetensors"))
    return next(iter([*whole, *index, *(single if len(single) == 1 else [])]), None)


def weights(files: Files, name: str) -> dict[str, Any]:
    """The tensors that a file of weights, or an index, leads to, by name.

    Raises:
        Damaged: a shard is missing or lacks a tensor, or the index points out of its folder.
    """
    value = files.load(name)
    if not isinstance(value, dict):
        raise Damaged(f"{files.root / name} holds no table of tensors")
    if name.endswith(INDEX) or is_index(value):
        return indexed(files, name, value)
    return value


def is_index(value: Any) -> bool:
    """Whether JSON is an index of shards."""
    return isinstance(value, dict) and isinstance(value.get("weight_map"), dict)


def indexed(files: Files, name: str, index: dict[str, Any]) -> dict[str, Stored]:
    """The tensors of all shards of an index, in its order.

    Raises:
        Damaged: as `weights`.
    """
    place = files.root / name
    if not is_index(index):
        raise Damaged(f"{place} has no weight_map")
    shards: dict[str, dict[str, Stored]] = {}
    found = {}
    folder = name.rpartition("/")[0]
    for tensor, shard in index["weight_map"].items():
        if not isinstance(shard, str) or not shard or shard in (".", "..") or set(shard) & set("/\\\0"):
            raise Damaged(f"{place} looks for {tensor!r} in {shard!r}: a shard must be a file beside its index")
        if shard not in shards:
            if shard not in files.names(folder):
                raise Damaged(f"{place} looks for {tensor!r} in {shard!r}, which is not there")
            shards[shard] = files.load(f"{folder}/{shard}" if folder else shard)
        if not isinstance(shards[shard], dict) or tensor not in shards[shard]:
            raise Damaged(f"{place} looks for {tensor!r} in {shard!r}, which lacks it")
        found[tensor] = shards[shard][tensor]
    left = [tensor for shard in shards.values() for tensor in shard if tensor not in found]
    if left:
        raise Damaged(f"{place} does not list {left[0]!r}, which is in a shard; {len(left)} in all")
    return found
