"""Reads the folders that Accelerate's `save_state` writes.

https://huggingface.co/docs/accelerate/usage_guides/checkpoint
"""

from __future__ import annotations

import re
from typing import Any

from diffs.checkpoints import deepspeed, distributed, shards
from diffs.checkpoints.checkpoint import Checkpoint
from diffs.checkpoints.files import Files
from diffs.checkpoints.states import put_generators, put_optimizer

FORMAT = "Accelerate save_state"
_RANDOM = re.compile(r"random_states_(\d+)\.pkl")


def recognises(names: set[str]) -> bool:
    """Whether a folder with these files is one."""
    return any(map(_RANDOM.fullmatch, names))


def read(files: Files, names: set[str], checkpoint: Checkpoint) -> None:
    """Fill a checkpoint from a folder."""
    checkpoint.format = FORMAT
    checkpoint.holds = frozenset(
        {"parameter", "optimizer", "scheduler", "scaler", "rng", "order", "cursor", "counter", "other"}
    )
    checkpoint.derived = {
        "cursor": "left to the script: `skip_first_batches`, with a count that the script keeps",
        "order": "drawn again by the script's loader, from the generators",
    }
    weights: dict[str, Any] = {}
    ordered = False
    if (name := shards.find(names)) is not None:
        weights = shards.weights(files, name)
        ordered = ".safetensors" not in name
        checkpoint.put("parameter", weights)
    for name in sorted(names):
        stem, _, suffix = name.partition(".")
        if re.fullmatch(r"(model|pytorch_model)_\d+", stem) and suffix in ("safetensors", "bin"):
            checkpoint.put("parameter", files.load(name), stem)
        elif re.fullmatch(r"optimizer(_\d+)?\.(bin|pt)", name):
            put_optimizer(checkpoint, files.load(name), weights if stem == "optimizer" else {}, ordered)
        elif re.fullmatch(r"scheduler(_\d+)?\.bin", name):
            checkpoint.put("scheduler", files.load(name), stem if stem != "scheduler" else "")
        elif re.fullmatch(r"sampler(_\d+)?\.bin", name):
            checkpoint.put("order", {stem: files.load(name)})
        elif re.fullmatch(r"dl_state_dict(_\d+)?\.bin", name):
            checkpoint.put("cursor", {stem: files.load(name)})
        elif name == "scaler.pt":
            checkpoint.put("scaler", files.load(name))
        elif re.fullmatch(r"custom_checkpoint_\d+\.pkl", name):
            checkpoint.put("other", {stem: files.load(name)})
        elif (files.root / name).is_dir():
            _read_folder(files, name, checkpoint)
    _read_generators(files, names, checkpoint)


def _read_folder(files: Files, name: str, checkpoint: Checkpoint) -> None:
    """What FSDP and DeepSpeed write below the folder."""
    names = files.names(name)
    if deepspeed.recognises(names):
        deepspeed.read(files, name, checkpoint)
    elif distributed.recognises(names):
        saved = distributed.nested(files, name)
        key, part = ("model", "parameter") if name.startswith("pytorch_model") else ("optimizer", "optimizer")
        checkpoint.put(part, saved.get(key, saved))


def _read_generators(files: Files, names: set[str], checkpoint: Checkpoint) -> None:
    ranks = {int(found[1]): name for name in names if (found := _RANDOM.fullmatch(name))}
    for rank, name in sorted(ranks.items()):
        saved = files.load(name)
        if isinstance(saved, dict):
            if "step" in saved:
                name = "accelerator_step" if len(ranks) == 1 else f"accelerator_step.rank{rank}"
                checkpoint.put("counter", {name: saved.pop("step")})
            put_generators(checkpoint, saved, f"rank{rank}" if len(ranks) > 1 else "")
