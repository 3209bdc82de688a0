"""The generators that training draws from: torch, python, numpy where it is loaded, and devices."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def seed(value: int) -> None:
    """Set every global generator to a state that depends on `value` alone."""
    random.seed(value)
    torch.manual_seed(value)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(value % 2**32)


def states() -> dict[str, torch.Tensor]:
    """The state of every global generator, as integer tensors; draws nothing.

    Names are `torch`, `python`, `numpy` (only where it is loaded) and `cuda:0`...
    """
    found = {"torch": torch.get_rng_state()}
    version, words, gauss = random.getstate()
    found["python"] = torch.tensor([*words, version, 0 if gauss is None else hash(gauss)], dtype=torch.int64)
    if "numpy" in sys.modules:
        _, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        found["numpy"] = torch.tensor([*keys.tolist(), position, has_gauss, hash(cached)], dtype=torch.int64)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            found[f"cuda:{index}"] = state
    return found


def snapshot() -> dict[str, Any]:
    """Everything `restore` needs, as tensors and plain values that `torch.load(weights_only=True)` reads."""
    version, words, gauss = random.getstate()
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(words), gauss]}
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        found["numpy"] = [str(kind), keys.tolist(), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def restore(saved: dict[str, Any]) -> None:
    """Put every generator that `snapshot` saved back to where it was."""
    torch.set_rng_state(saved["torch"])
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in saved and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        kind, keys, position, has_gauss, cached = saved["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), position, has_gauss, cached))
    if "cuda" in saved:
        torch.cuda.set_rng_state_all(saved["cuda"])
