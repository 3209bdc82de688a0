"""Where a value of a training run lives, and in which order such places come."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """One place in a run. Two runs are paired by equal addresses, never by position.

    update: optimizer steps completed before this one, from 0; -1 at `start`.
    micro: micro-batch inside its accumulation window, from 0; -1 where the moment has none.
    moment, kind: a pair of `MOMENTS`.
    name: a parameter, a tensor, a counter...; "" where there is only one.
    rank: the process.
    """

    update: int
    micro: int
    moment: str
    kind: str
    name: str
    rank: int = 0


# Moments in causal order, each with its kinds in causal order.
# A difference in a decisive kind makes the verdict; a witness locates and explains.
DECISIVE, WITNESS = True, False
MOMENTS: dict[str, dict[str, bool]] = {
    "start": {
        "parameter": DECISIVE,
        "buffer": DECISIVE,
        "hyperparameter": DECISIVE,
        "rng": WITNESS,
        "scaler": WITNESS,
    },
    "batch": {"batch_ids": DECISIVE, "input": DECISIVE},
    "forward": {"rng": WITNESS, "mode": WITNESS, "loss": WITNESS},
    "backward": {"objective": WITNESS, "gradient": WITNESS},
    "consume": {
        "gradient": DECISIVE,
        "learning_rate": DECISIVE,
        "hyperparameter": DECISIVE,
        "scaler": WITNESS,
    },
    "update": {
        "parameter": DECISIVE,
        "buffer": DECISIVE,
        "optimizer_state": DECISIVE,
        "scaler": DECISIVE,
        "ema": DECISIVE,
        "rng": WITNESS,
    },
    "schedule": {"learning_rate": DECISIVE, "scheduler": WITNESS},
    "evaluate": {"metric": DECISIVE, "rng": WITNESS, "mode": WITNESS, "gradient": WITNESS},
    "log": {"metric": DECISIVE},
    "checkpoint": {"item": DECISIVE},
    "end": {"count": DECISIVE, "parameter": DECISIVE},
}

# Kinds that one side alone may have: what only one run recorded is listed, not judged.
OPTIONAL_KINDS = frozenset({"metric", "ema", "scaler", "hyperparameter", "item"})
# Kinds of which one side alone may have a name, such as an argument that only one model is given.
NAMED_KINDS = frozenset({"batch_ids", "input", "optimizer_state", "count"})

_PLACES = {place: rank for rank, place in enumerate((m, k) for m, kinds in MOMENTS.items() for k in kinds)}
_MOMENT_RANKS = {moment: rank for rank, moment in enumerate(MOMENTS)}


# Kinds of which a rank may hold a shard of each parameter's value.
SHARDED_KINDS = frozenset({"parameter", "gradient", "optimizer_state"})


def parameter_of(address: Address) -> str:
    """The parameter that a value of one of the `SHARDED_KINDS` belongs to."""
    return address.name.rpartition(".")[0] if address.kind == "optimizer_state" else address.name


def decisive(moment: str, kind: str) -> bool:
    """Whether a difference at this moment and kind makes the verdict."""
    return MOMENTS[moment][kind]


def place_rank(moment: str, kind: str) -> int:
    """The causal rank of a (moment, kind) pair within one update: 0 is `start`, `parameter`."""
    return _PLACES[moment, kind]


def moment_rank(moment: str) -> int:
    """The causal rank of a moment: 0 is `start`."""
    return _MOMENT_RANKS[moment]


def causal_key(address: Address) -> tuple[int, ...]:
    """Sort key of an address. Within an update the micro-batches come first, each with its moments, then the rest.

    `end` comes after everything, whatever its update. Equal keys keep the order in which they were recorded.
    """
    last = address.moment == "end"
    window = address.micro if address.micro >= 0 else 1 << 30
    return (last, address.update, window, place_rank(address.moment, address.kind))
