"""Numbers, places and lists as a report writes them."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# Kinds as a reader calls them; {} is the name.
_KINDS = {
    "batch_ids": "sample ids",
    "buffer": "buffer {}",
    "count": "number of {}",
    "ema": "averaged {}",
    "gradient": "gradient of {}",
    "hyperparameter": "hyperparameter {}",
    "input": "input {}",
    "item": "checkpoint item {}",
    "learning_rate": "learning rate of {}",
    "loss": "loss",
    "metric": "metric {}",
    "mode": "train or eval mode",
    "objective": "objective of backward()",
    "optimizer_state": "optimizer state {}",
    "parameter": "parameter {}",
    "rng": "random state of {}",
    "scaler": "scaler {}",
    "scheduler": "scheduler state",
}

# What a site's inputs are called in a list.
_INPUTS = {
    "batch_ids": "sample ids",
    "buffer": "buffers",
    "gradient": "gradients",
    "hyperparameter": "hyperparameters",
    "input": "batch",
    "learning_rate": "learning rates",
    "optimizer_state": "optimizer state",
    "parameter": "parameters",
    "rng": "random state",
    "scaler": "scaler",
}


_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Count(int):
    """An integer that a format can give a unit: f"{Count(2):batch}" is "2 batches". Thousands are grouped."""

    def __format__(self, unit: str) -> str:
        if not unit:
            return f"{int(self):,}"
        plural = "" if self == 1 else "es" if unit.endswith(("ch", "s", "x")) else "s"
        return f"{int(self):,} {unit}{plural}"


def listing(words: Iterable[str], last: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail


def few(words: Sequence[str], shown: int = 3) -> str:
    """The first of many: "a, b, c and 5 more"; "" for none."""
    rest = [f"{len(words) - shown} more"] if len(words) > shown else []
    return listing([*words[:shown], *rest]) if words else ""


def kind(kind: str, name: str) -> str:
    """What lives at an address: "gradient of 0.weight"."""
    return _KINDS.get(kind, f"{kind} {{}}").replace("{}", name).removesuffix(" of ").strip()


def inputs(kinds: Sequence[str]) -> list[str]:
    """The names of kinds that agree at a site, each once."""
    return list(dict.fromkeys(_INPUTS.get(kind, kind) for kind in kinds))


def moment(update: int, micro: int, moment: str, rank: int = 0) -> str:
    """When, and on which rank if not the first: "update 1, micro 0, backward"."""
    parts = [f"rank {rank}"] if rank else []
    if moment not in ("start", "end"):
        parts.append(f"update {update}" if update >= 0 else "before the first update")
    if micro >= 0:
        parts.append(f"micro {micro}")
    return ", ".join([*parts, moment])


def place(address: Any) -> str:
    """An address: "update 1, consume: gradient of 0.weight"."""
    when = moment(address.update, address.micro, address.moment, address.rank)
    return f"{when}: {kind(address.kind, address.name)}"


def value(value: Any, dtype: str | None = None) -> str:
    """A recorded value; a float in the shortest form that gives the same float of its dtype again."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_one, value))}]"
    return _shortest(value, dtype) if isinstance(value, float) else _one(value)


def rounded(value: float) -> str:
    """A measured number to six digits."""
    return _shortest(float(f"{value:.6g}"), None)


def printable(text: str) -> str:
    """Somebody else's text without what would colour or move a terminal's cursor; other control characters as "?"."""
    return _CONTROL.sub("?", _ESCAPE.sub("", text.expandtabs()))


def seconds(value: float | None) -> str:
    """A duration: "120 s"; "some time" if it is not known."""
    return "some time" if value is None else f"{value:g} s"


def _one(value: Any) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else _shortest(value, None)
        if isinstance(value, float)
        else str(value)
    )


def _shortest(value: float, dtype: str | None) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    rounded = _ROUNDINGS.get((dtype or "").removeprefix("torch."))
    if rounded is None or rounded(value) != value:
        return repr(value)
    for digits in range(1, 18):
        text = f"{value:.{digits}g}"
        if rounded(float(text)) == value:
            return repr(float(text))
    return repr(value)


def _packed(form: str) -> Callable[[float], float | None]:
    def rounded(value: float) -> float | None:
        try:
            return struct.unpack(form, struct.pack(form, value))[0]
        except OverflowError:
            return None

    return rounded


def _bfloat16(value: float) -> float | None:
    """The nearest bfloat16, ties to even: the upper half of a float32."""
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return None
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


_ROUNDINGS = {"float32": _packed("<f"), "float16": _packed("<e"), "bfloat16": _bfloat16}
