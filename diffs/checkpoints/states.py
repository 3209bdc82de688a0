"""Reads one saved dictionary, as training scripts write it: each entry goes to the part that its name speaks of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from diffs.checkpoints import naming
from diffs.checkpoints.checkpoint import Checkpoint
from diffs.checkpoints.pickled import Record, _Array
from diffs.checkpoints.stored import Damaged, Stored

# The whole name, without case and underscores, leads to its part.
_NAMES = {
    "parameter": "(model)?(state(dict)?|weights)|model|net|network|params|parameters?|module",
    "optimizer": "optimizers?|optim|optims|opt|optimizers?state(dict)?s?|optim(state)?dict|optstate",
    "scheduler": "(lr)?schedulers?|(lr)?schedulers?state(dict)?|sched|lrscheduler",
    "scaler": "(grad|amp|loss)?scaler(state)?(dict)?|amp",
    "rng": "rngs?|(torch|python|numpy|cuda|cpu)?(rng|random)(states?)?",
    "order": "order|sampler|samplerstate(dict)?|permutation|indices",
    "cursor": "cursor|dataloader(state)?(dict)?|batchesconsumed|samplesconsumed|batchindex|batchidx|position",
    "counter": "counters?|(start|current)?epochs?|(global)?steps?(number)?|iter(ation)?s?(num)?|(num)?updates?",
    "accumulated_gradient": "accumulatedgradients?|gradients?|grads?",
    "ema": "ema|(model)?ema(model)?(state)?(dict)?|averagedmodel|swamodel",
    "arguments": "args|arguments|config|cfg|hparams|hyperparameters|modelargs|settings|options|opts",
}
_PATTERNS = [(part, re.compile(pattern)) for part, pattern in _NAMES.items()]


def part_named(key: Any) -> str:
    """The part that an entry's name speaks of, or `other`."""
    plain = re.sub(r"[_\-. ]", "", str(key).lower())
    return next((part for part, pattern in _PATTERNS if pattern.fullmatch(plain)), "other")


def is_table(value: Any) -> bool:
    """Whether a value is a table of tensors by name."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(key, str) for key in value)
        and sum(isinstance(item, Stored) for item in value.values()) * 2 > len(value)
    )


def fill(checkpoint: Checkpoint, saved: Any, ordered: bool = True) -> None:
    """Put the entries of a saved dictionary into the parts that they belong to.

    ordered: whether a table of tensors stands in the order of the model's own.

    Raises:
        Damaged: it is no dictionary.
    """
    if isinstance(saved, Record):
        saved = saved.plain()
    if isinstance(saved, Stored):
        saved = {"tensor": saved}
    if not isinstance(saved, Mapping):
        raise Damaged(f"{checkpoint.path} holds {type(saved).__name__}: a dictionary is needed, or a table of tensors")
    if naming.is_optimizer(saved):
        put_optimizer(checkpoint, saved, {}, ordered)
        return
    parts = {key: part_named(key) for key in saved}
    if is_table(saved) and not any(
        part == "parameter" or (part == "optimizer" and not isinstance(saved[key], Stored))
        for key, part in parts.items()
    ):
        checkpoint.put("parameter", saved)
        return
    weights: dict[Any, Any] = {}
    for key, part in parts.items():
        if part == "parameter" and isinstance(saved[key], Mapping):
            inner = saved[key]
            checkpoint.put("parameter", inner, "" if not weights else str(key))
            weights = weights or dict(inner)
    for key, part in parts.items():
        if part == "optimizer":
            put_optimizer(checkpoint, saved[key], weights, ordered)
        elif part == "rng":
            put_generators(checkpoint, saved[key], "" if isinstance(saved[key], Mapping) else str(key))
        elif part in ("scaler", "scheduler", "ema", "accumulated_gradient") and isinstance(saved[key], Mapping):
            checkpoint.put(part, saved[key])
        elif part != "parameter" or not isinstance(saved[key], Mapping):
            checkpoint.put(part, {key: saved[key]})


def put_optimizer(checkpoint: Checkpoint, saved: Any, weights: Mapping[str, Any], ordered: bool) -> None:
    """Add an optimizer's state, or a list of several, by the names of the parameters where they are certain.

    weights: the model's tensors. ordered: whether they stand in the order of the model's own table.
    """
    if isinstance(saved, (list, tuple)) and all(map(naming.is_optimizer, saved)):
        for number, one in enumerate(saved):
            _put_one(checkpoint, one, weights, ordered, f"optimizer[{number}]" if number else "")
    elif naming.is_optimizer(saved):
        _put_one(checkpoint, saved, weights, ordered, "")
    else:
        checkpoint.put("optimizer", saved)


def _put_one(checkpoint: Checkpoint, saved: Any, weights: Mapping[str, Any], ordered: bool, prefix: str) -> None:
    known = naming.names(saved, weights, ordered)
    name = known.__getitem__ if known else str
    state = {name(key) if not known or key in known else str(key): value for key, value in saved["state"].items()}
    groups = [
        {
            **{key: value for key, value in group.items() if key not in ("params", "param_names")},
            "parameters": [name(key) for key in group["params"]],
        }
        for group in saved["param_groups"]
    ]
    more = {key: value for key, value in saved.items() if key not in ("state", "param_groups")}
    checkpoint.put("optimizer", state, prefix)
    checkpoint.put("optimizer", {f"{prefix}.groups".lstrip("."): groups, **more})
    if not known and state and "optimizer" in checkpoint.parts:
        checkpoint.parts["optimizer"].by_index = True


_GENERATORS = {
    "python": ("python", "randomstate", "pythonrngstate", "pyrng", "random", "pythonrandomstate"),
    "numpy": ("numpy", "numpyrandomseed", "numpyrngstate", "nprng", "numpyrandomstate", "np"),
    "torch": ("torch", "cpu", "torchmanualseed", "torchrngstate", "rngstate", "cpurngstate", "torchrng", "rng"),
    "cuda": ("cuda", "torchcudamanualseed", "cudarngstate", "torchcudarngstate", "gpurngstate"),
}


def put_generators(checkpoint: Checkpoint, saved: Any, prefix: str = "") -> None:
    """Add states of random generators, under the names `torch`, `python`, `numpy` and `cuda` where they are known."""
    if not isinstance(saved, Mapping):
        checkpoint.put("rng", {_generator(prefix): _plain(saved)})
        return
    found = {_generator(key): _plain(value) for key, value in saved.items()}
    checkpoint.put("rng", {f"{prefix}.{name}": value for name, value in found.items()} if prefix else found)


def _generator(key: Any) -> str:
    plain = re.sub(r"[_\-. ]", "", str(key).lower())
    return next((name for name, keys in _GENERATORS.items() if plain in keys), str(key))


def _plain(value: Any) -> Any:
    """Arrays as lists: whether numbers were saved as one or the other does not matter to a generator."""
    if isinstance(value, _Array):
        value = value.content
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
