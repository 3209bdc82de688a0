"""Reads DeepSpeed's checkpoint folders, ZeRO stages 0 to 3.

Each rank wrote its part of one flat vector for each parameter group, and of the optimizer's state for that vector. A
parameter is a slice of the vector, so it lies in one file or goes over into the next one. The layout is that of
https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/utils/zero_to_fp32.py
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from diffs.checkpoints import naming
from diffs.checkpoints.checkpoint import Checkpoint
from diffs.checkpoints.files import Files
from diffs.checkpoints.pickled import Record
from diffs.checkpoints.states import put_optimizer
from diffs.checkpoints.stored import Damaged, Span, Stored, cut
from diffs.checkpoints.stored import read as read_bytes

FORMAT = "DeepSpeed"
_TAG = re.compile(r"global_step\d+")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_LONGEST_TAG = 200  # bytes


def recognises(names: set[str]) -> bool:
    """Whether a folder with these files is one, or one tag of one."""
    return any(map(_MODEL.fullmatch, names)) or any(map(_TAG.fullmatch, names))


def read(files: Files, names: set[str] | str, checkpoint: Checkpoint) -> None:
    """Fill a checkpoint from a folder.

    names: the files in the checkpoint's folder; or the name of the folder below it that DeepSpeed wrote.
    """
    folder = names if isinstance(names, str) else ""
    if not checkpoint.format:
        checkpoint.format = FORMAT
        checkpoint.holds = frozenset({"parameter", "optimizer", "scheduler", "scaler", "counter", "arguments", "other"})
    folder = _tagged(files, folder)
    listed = sorted(files.names(folder))
    models = [(int(m[1] or 0), name) for name in listed if (m := _MODEL.fullmatch(name))]
    optimizers = [(int(m[1]), name) for name in listed if (m := _OPTIMIZER.fullmatch(name))]
    if any(int(m[2]) for name in listed if (m := _MODEL.fullmatch(name))):
        raise Damaged(
            f"{files.root / folder} is split over model-parallel ranks: convert it to a universal checkpoint first"
        )
    if not models:
        raise Damaged(f"{files.root / folder} holds no file mp_rank_00_model_states.pt")
    model = _table(files, folder, min(models)[1])
    module = model.get("module") or {}
    _put_state(checkpoint, model)
    if not optimizers:
        checkpoint.put("parameter", module)
        put_optimizer(checkpoint, model.get("optimizer"), module, True)
        return
    ranks = [_table(files, folder, name).get("optimizer_state_dict") or {} for _, name in sorted(optimizers)]
    count = ranks[0].get("partition_count", len(ranks))
    count = max(count) if isinstance(count, list) and count else count
    if count != len(ranks):
        raise Damaged(f"{files.root / folder} holds the optimizer state of {len(ranks)} ranks, {count} wrote it")
    try:
        _read_partitions(checkpoint, model, module, ranks)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise Damaged(f"{files.root / folder}: the ranks' parts do not fit: {type(error).__name__}: {error}") from None


def _tagged(files: Files, folder: str) -> str:
    """The folder of the tag that `latest` names, or of the only one there is."""
    names = files.names(folder)
    if any(map(_MODEL.fullmatch, names)):
        return folder
    tags = sorted((name for name in names if _TAG.fullmatch(name)), key=lambda name: int(name[11:]))
    if "latest" in names:
        path = files.root / folder / "latest"
        text = read_bytes(Span(str(path), 0, min(path.stat().st_size, _LONGEST_TAG))).decode(errors="replace").strip()
        if not text or set(text) & set("/\\\0") or text in (".", ".."):
            raise Damaged(f"{path} names {text!r}: it must be a folder beside it")
        if text not in names:
            raise Damaged(f"{path} names {text!r}, which is not there")
        tags = [text]
    return str(PurePath(folder, tags[-1]))


def _table(files: Files, folder: str, name: str) -> dict[str, Any]:
    saved = files.load(f"{folder}/{name}" if folder else name)
    if not isinstance(saved, dict):
        raise Damaged(f"{files.root / folder / name} holds no dictionary")
    return saved


def _put_state(checkpoint: Checkpoint, model: dict[str, Any]) -> None:
    checkpoint.put("scheduler", model.get("lr_scheduler"))
    counters = {"global_steps": "updates", "global_samples": "samples", "skipped_steps": "skipped"}
    checkpoint.put("counter", {name: model[key] for key, name in counters.items() if key in model})
    checkpoint.put("order", model.get("data_sampler"))
    if "ds_config" in model:
        checkpoint.put("arguments", {"ds_config": model["ds_config"]})
    sizes = ("dp_world_size", "mp_world_size", "ds_version")
    checkpoint.put("arguments", {key: model[key] for key in sizes if key in model})
    known = {"module", "optimizer", "lr_scheduler", "data_sampler", "ds_config", "param_shapes", "buffer_names",
             "frozen_param_shapes", "frozen_param_fragments", "shared_params", *sizes, *counters}  # fmt: skip
    checkpoint.put("other", {key: value for key, value in model.items() if key not in known})


@dataclass(frozen=True)
class _Place:
    """A parameter in the flat vector of its group: elements from `start` on, of each rank in stage 3."""

    name: str
    group: int
    start: int
    shape: tuple[int, ...]


def _read_partitions(
    checkpoint: Checkpoint, model: dict[str, Any], module: Mapping[str, Any], ranks: list[dict[str, Any]]
) -> None:
    stage = ranks[0].get("zero_stage", 1)
    stage = int(stage.arguments[0] if isinstance(stage, Record) else stage)  # an enum's member, or its number
    masters = [_groups(rank["fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"]) for rank in ranks]
    places = list(_places(model["param_shapes"], ranks[0], len(ranks) if stage == 3 else 1))
    buffers = set(model.get("buffer_names") or ())
    whole = {name: tensor for name, tensor in module.items() if name in buffers}
    whole |= model.get("frozen_param_fragments") or {} if stage < 3 else {}
    whole |= {place.name: _slice(place, masters, stage) for place in places}
    for name, source in dict(model.get("shared_params") or {}).items():
        if source in whole:
            whole[name] = whole[source]
    checkpoint.put("parameter", whole)
    if stage < 3:
        checkpoint.put("other", {"module": {name: tensor for name, tensor in module.items() if name not in buffers}})
    bases = [next((value for value in rank.values() if naming.is_optimizer(value)), None) for rank in ranks]
    if all(bases):
        state: dict[str, dict[str, Any]] = {}
        states = [list(base["state"].values()) for base in bases if base]
        for place in places:
            for key, value in states[0][place.group].items():
                flat = isinstance(value, Stored) and value.shape == masters[0][place.group].shape
                parts = [[one[key] for one in rank] if flat else [] for rank in states]
                state.setdefault(place.name, {})[key] = _slice(place, parts, stage) if flat else value
        groups = [
            {key: item for key, item in group.items() if key != "params"} for group in (bases[0] or {})["param_groups"]
        ]
        checkpoint.put("optimizer", {**state, "groups": groups})
    for key in ("loss_scaler", "dynamic_loss_scale", "overflow"):
        if key in ranks[0]:
            checkpoint.put("scaler", {key: ranks[0][key]})


def _groups(saved: Any) -> list[Stored]:
    return list(saved) if isinstance(saved, (list, tuple)) else [saved]


def _places(shapes: Any, rank: dict[str, Any], world: int) -> Iterator[_Place]:
    """Where each parameter lies. world: ranks that each parameter is split over; 1 where the vector as a whole is."""
    paddings = rank.get("param_alignment_paddings") if world == 1 else None
    for group, table in enumerate(shapes if isinstance(shapes, list) else [shapes]):
        start = 0
        for number, (name, shape) in enumerate(table.items()):
            sizes = tuple(shape)
            yield _Place(name, group, start, sizes)
            start += math.ceil(math.prod(sizes) / world)
            start += paddings[group][number] if paddings else 0


def _slice(place: _Place, ranks: list[list[Stored]], stage: int) -> Stored:
    """A parameter, or its share of an optimizer's vector, out of the ranks' parts."""
    size = math.prod(place.shape)
    parts = [rank[place.group] for rank in ranks]
    dtype = parts[0].dtype
    if any(part.spans is None or part.dtype != dtype for part in parts):
        raise Damaged(f"the part of {place.name!r} is no vector")
    if stage < 3:
        spans = cut(itertools.chain.from_iterable(part.spans or () for part in parts),
                    place.start * dtype.itemsize, size * dtype.itemsize)  # fmt: skip
        return Stored.at(dtype, place.shape, spans)
    share = math.ceil(size / len(parts))
    spans = []
    for number, part in enumerate(parts):
        wanted = min(share, max(0, size - number * share))
        spans += cut(part.spans or (), place.start * dtype.itemsize, wanted * dtype.itemsize)
    return Stored.at(dtype, place.shape, spans)
