"""Holds what a trainer wrote against what it held when it wrote it, tensor by tensor.

Files are known by their first bytes: those of safetensors, and those of `torch.save`, of which nothing is unpickled but
tensors and plain values.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffs.checkpoints.safetensors import read_tensors
from oracle.recorder.values import leaves

IDENTICAL, ABSENT = "identical", "absent"
_STATE = re.compile(r"(?:^|\.)state\.(\d+)\.(.+)$")


def compare(
    files: list[Path], models: list[nn.Module], optimizers: list[Any], average: Mapping[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Yield (kind and name, how its written value stands to the live one) for all that a save should hold.

    files: what was written. average: the averaged parameters, by name.

    The second is `identical`, `cast to <dtype>`, `the averaged one`, `a part of it`, `another value`, `absent`, or, for
    a name of a tied tensor, `left out, tied to <name>`. Nothing is yielded of a save that holds no parameter.
    """
    written: list[tuple[str, Tensor]] = []
    for file in files:
        written.extend(_tensors(file))
    for model in models:
        yield from _model(model, written, average)
    for optimizer in optimizers:
        yield from _optimizer(optimizer, written)


def _model(model: nn.Module, written: list[tuple[str, Tensor]], average: Mapping[str, Tensor]) -> Iterator[Any]:
    live = dict(model.named_parameters(remove_duplicate=False))
    firsts = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {name: [tensor for key, tensor in written if _ends(key, name)] for name in live}
    if not any(found.values()):
        return
    for name, parameter in live.items():
        first = firsts[id(parameter)]
        if name != first:
            if not found[name]:
                yield f"parameter {name}", f"left out, tied to {first}"
            continue
        aliases = [other for other in live if live[other] is parameter]
        copies = [tensor for other in aliases for tensor in found[other]]
        yield f"parameter {name}", _best(parameter.detach(), copies, average.get(name))
    for name in model.state_dict().keys() - live.keys():
        copies = [tensor for key, tensor in written if _ends(key, name)]
        buffer = model.state_dict()[name]
        if isinstance(buffer, Tensor):
            yield f"buffer {name}", _best(buffer, copies, None)


def _optimizer(optimizer: Any, written: list[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    states = [(match, tensor) for key, tensor in written if (match := _STATE.search(key)) is not None]
    if not states or not hasattr(optimizer, "state_dict"):  # the stand-in of another library's is no file's content
        return
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in leaves("", state):
            if isinstance(value, Tensor):
                copies = [tensor for match, tensor in states if (match[1], match[2]) == (str(index), key[1:])]
                yield f"optimizer_state {index}{key}", _best(value, copies, None)


def _best(live: Tensor, copies: list[Tensor], average: Tensor | None) -> str:
    """How the copy that is nearest to the live tensor stands to it."""
    if not copies:
        return ABSENT
    kinds = [_relation(live, copy, average) for copy in copies]
    return IDENTICAL if IDENTICAL in kinds else next((kind for kind in kinds if kind != "another value"), kinds[0])


def _relation(live: Tensor, copy: Tensor, average: Tensor | None) -> str:
    live, copy = live.detach().cpu(), copy.cpu()
    if copy.shape == live.shape:
        if copy.dtype == live.dtype:
            if _same(live, copy):
                return IDENTICAL
        elif _same(live.to(copy.dtype), copy):
            return f"cast to {str(copy.dtype).removeprefix('torch.')}"
        if average is not None and average.dtype == copy.dtype and _same(average.detach().cpu(), copy):
            return "the averaged one"
    elif copy.dtype == live.dtype and 0 < copy.numel() < live.numel() and _is_part(live, copy):
        return "a part of it"
    return "another value"


def _is_part(live: Tensor, copy: Tensor) -> bool:
    """Whether a tensor is a run of the other's rows, or of its elements in order."""
    flat, size = live.flatten(), copy.numel()
    step = math.prod(live.shape[1:]) if live.dim() > 1 else 1
    return any(_same(flat[at : at + size], copy.flatten()) for at in range(0, len(flat) - size + 1, max(1, step)))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def _ends(key: str, name: str) -> bool:
    return key == name or key.endswith(f".{name}")


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield (dotted name, tensor) of what a file holds; nothing of a file that is of another kind or cannot be read."""
    try:
        if zipfile.is_zipfile(path):
            content = torch.load(path, map_location="cpu", weights_only=True)
            yield from ((name[1:], value) for name, value in leaves("", content) if isinstance(value, Tensor))
        else:
            yield from ((name, stored.tensor()) for name, stored in read_tensors(path).items())
    except Exception:  # whatever it is, it is not ours to judge: a log, a pickle, a file that was removed again
        return
