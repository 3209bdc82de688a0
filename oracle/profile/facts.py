"""What a recorded run of a trainer shows of batches, accumulation, devices and torch's settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diffs.trace import Trace


@dataclass(frozen=True)
class Facts:
    """Read from one trace.

    batch_size: samples of the largest batch that a backward followed.
    accumulation: micro-batches of the largest window.
    devices: where parameters were.
    settings: of torch and of the model's `config`, those that the trainer changed: name to (before, after).
    """

    batch_size: int | None = None
    accumulation: int | None = None
    devices: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def facts(trace: Trace) -> Facts:
    """What a candidate's trace shows."""
    trained = {row.address[:2] for row in trace.rows_at(("backward", "objective"))}
    ids = {row.address[:2]: row.content for row in trace.rows_at(("batch", "batch_ids"))}  # the last try of each
    sizes = [len(content) for place, content in ids.items() if place in trained]
    windows = Counter(update for update, _ in trained)
    before, after = (trace.manifest.get(name, {}) for name in ("flags_before", "flags"))
    changed = {name: (before[name], after.get(name)) for name in before if before[name] != after.get(name)}
    changed |= {f"model.config.{name}": pair for name, pair in trace.manifest.get("reconfigured", {}).items()}
    return Facts(
        batch_size=max(sizes, default=None),
        accumulation=max(windows.values(), default=None),
        devices=tuple(trace.manifest.get("devices", ())),
        settings={name: (_said(old), _said(new)) for name, (old, new) in changed.items()},
    )


def _said(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
