"""What every test runs under: one thread, no hub, the working tree's root at hand."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# Before torch is imported: gradients of a LayerNorm differ between one thread and two.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("GITHUB_ACTIONS", None)  # in a job of its own a command would announce what it is tested with

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has its background jobs ignore

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the working tree."""
    return ROOT
