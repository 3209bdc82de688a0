"""Reads the folders that PEFT's `save_pretrained` writes: an adapter's weights and its configuration.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

from diffs.checkpoints import shards
from diffs.checkpoints.checkpoint import Checkpoint
from diffs.checkpoints.files import Files

FORMAT = "PEFT adapter"
CONFIGURATION = "adapter_config.json"


def recognises(names: set[str]) -> bool:
    """Whether a folder with these files is one."""
    return CONFIGURATION in names


def read(files: Files, names: set[str], checkpoint: Checkpoint) -> None:
    """Fill a checkpoint from a folder."""
    checkpoint.format = FORMAT
    checkpoint.holds = frozenset({"parameter", "arguments"})
    if (name := shards.find(names)) is not None:
        checkpoint.put("parameter", shards.weights(files, name))
    checkpoint.put("arguments", {"adapter_config": files.load(CONFIGURATION)})
    checkpoint.notes.append("an adapter changes a base model, which it names and does not hold")
