"""Reads Lightning's .ckpt files: one dictionary.

https://lightning.ai/docs/pytorch/stable/common/checkpointing_basic.html
"""

from __future__ import annotations

from typing import Any

from diffs.checkpoints.checkpoint import Checkpoint
from diffs.checkpoints.files import Files
from diffs.checkpoints.states import put_optimizer

FORMAT = "Lightning"
VERSION = "pytorch-lightning_version"
_ARGUMENTS = ("hyper_parameters", "datamodule_hyper_parameters", "hparams_name", "datamodule_name", VERSION)
_SCALER = ("MixedPrecision", "MixedPrecisionPlugin", "native_amp_scaling_state")


def recognises(saved: Any) -> bool:
    """Whether what a file holds is one."""
    return isinstance(saved, dict) and VERSION in saved


def read(files: Files, saved: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Fill a checkpoint from what a .ckpt file holds."""
    checkpoint.format = FORMAT
    checkpoint.holds = frozenset(
        {"parameter", "optimizer", "scheduler", "scaler", "counter", "cursor", "arguments", "other"}
    )
    checkpoint.derived = {"accumulated_gradient": "saved only after an update, when there is none"}
    weights = saved.get("state_dict") or {}
    checkpoint.put("parameter", weights)
    put_optimizer(checkpoint, saved.get("optimizer_states") or [], weights, True)
    if saved.get("lr_schedulers"):
        checkpoint.put("scheduler", {str(place): one for place, one in enumerate(saved["lr_schedulers"])})
    for key in _SCALER:
        checkpoint.put("scaler", saved.get(key))
    checkpoint.put(
        "counter", {name: saved[key] for key, name in (("global_step", "updates"), ("epoch", "epoch")) if key in saved}
    )
    if "loops" in saved:
        checkpoint.put("cursor", {"loops": saved["loops"]})
        if not saved["loops"].get("fit_loop", {}).get("state_dict", {}).get("combined_loader"):
            checkpoint.partial["cursor"] = (
                "batches are counted, but the loader's own state is not saved: an epoch that was broken off starts "
                "again at its first batch"
            )
    checkpoint.put("arguments", {key: saved[key] for key in _ARGUMENTS if key in saved})
    known = {"state_dict", "optimizer_states", "lr_schedulers", *_SCALER, "global_step", "epoch", "loops", *_ARGUMENTS}
    checkpoint.put("other", {key: value for key, value in saved.items() if key not in known})
