"""Reads the folders that transformers' Trainer and `save_pretrained` write.

https://huggingface.co/docs/transformers/main_classes/trainer
"""

from __future__ import annotations

import re
from typing import Any

from diffs.checkpoints import deepspeed, distributed, shards
from diffs.checkpoints.checkpoint import Checkpoint
from diffs.checkpoints.files import Files
from diffs.checkpoints.states import put_generators, put_optimizer

TRAINER, MODEL = "transformers.Trainer", "transformers model"
_RNG = re.compile(r"rng_state(?:_(\d+))?\.pth")
# What a resumed Trainer works out from the seed and the number of updates done.
DERIVED = {
    "order": "drawn again from the seed in the arguments",
    "cursor": "found by skipping as many batches as `global_step` updates took",
    "accumulated_gradient": "saved only after an update, when there is none",
}


def recognises(names: set[str]) -> bool:
    """Whether a folder with these files is one."""
    return "trainer_state.json" in names or ("config.json" in names and shards.find(names) is not None)


def read(files: Files, names: set[str], checkpoint: Checkpoint) -> None:
    """Fill a checkpoint from a folder."""
    checkpoint.format = TRAINER if "trainer_state.json" in names else MODEL
    checkpoint.holds = frozenset({"parameter", "arguments"})
    weights = _weights(files, names, checkpoint)
    for name in ("config.json", "generation_config.json", "adapter_config.json"):
        if name in names:
            checkpoint.put("arguments", {name.removesuffix(".json"): files.load(name)})
    if checkpoint.format == TRAINER:
        checkpoint.holds |= {"optimizer", "scheduler", "scaler", "rng", "counter", "other"}
        checkpoint.derived = dict(DERIVED)
        _read_training(files, names, checkpoint, *weights)


def _weights(files: Files, names: set[str], checkpoint: Checkpoint) -> tuple[dict[str, Any], bool]:
    """The model's tensors, and whether they stand in the order of its own table."""
    if (name := shards.find(names)) is not None:
        found = shards.weights(files, name)
        checkpoint.put("parameter", found)
        return found, ".safetensors" not in name
    for name in sorted(names):
        if name.startswith("pytorch_model_fsdp") and distributed.recognises(files.names(name)):
            saved = distributed.nested(files, name)
            checkpoint.put("parameter", saved.get("model", saved))
    return {}, False


def _read_training(
    files: Files, names: set[str], checkpoint: Checkpoint, weights: dict[str, Any], ordered: bool
) -> None:
    for name in ("optimizer.pt", "optimizer.bin"):
        if name in names:
            put_optimizer(checkpoint, files.load(name), weights, ordered)
    for name in sorted(names):
        if name.startswith("optimizer_") and "." not in name and distributed.recognises(files.names(name)):
            saved = distributed.nested(files, name)
            put_optimizer(checkpoint, saved.get("optimizer", saved), weights, False)
    if deepspeed.recognises(names):
        deepspeed.read(files, "", checkpoint)
    for name, part in (("scheduler.pt", "scheduler"), ("scaler.pt", "scaler")):
        if name in names:
            checkpoint.put(part, files.load(name))
    ranks = {int(found[1] or 0): name for name in names if (found := _RNG.fullmatch(name))}
    for rank, name in sorted(ranks.items()):
        put_generators(checkpoint, files.load(name), f"rank{rank}" if len(ranks) > 1 else "")
    state = files.load("trainer_state.json")
    if isinstance(state, dict):
        counters = ("global_step", "epoch", "num_input_tokens_seen", "total_flos")
        called = {"global_step": "updates", "epoch": "epochs"}  # with their fraction, other formats count whole ones
        checkpoint.put("counter", {called.get(key, key): state[key] for key in counters if key in state})
        checkpoint.put("other", {"trainer_state": {k: v for k, v in state.items() if k not in counters}})
    if "training_args.bin" in names:
        checkpoint.put("arguments", {"training_args": files.load("training_args.bin")})
