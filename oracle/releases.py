"""The released versions that the documentation speaks of: one table for profiles, evaluations and the matrix."""

from __future__ import annotations

RELEASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("accelerate", ()),
    ("deepspeed", ("deepspeed==0.19.8",)),
    ("fabric", ("lightning==2.6.6",)),
    ("fastai", ("fastai==2.8.12",)),
    ("ignite", ("pytorch-ignite==0.5.5",)),
    ("keras", ("keras==3.15.1",)),
    ("lightning", ("lightning==2.6.6",)),
    ("mmengine", ("mmengine==0.10.7",)),
    ("skorch", ("skorch==1.4.0",)),
    ("swift", ("ms-swift==4.6.0",)),
    ("torchtune", ("torchtune==0.6.1", "torchao==0.11.0")),
    ("transformers", ("transformers==4.45.2",)),
    ("transformers", ("transformers==4.46.3",)),
    ("transformers", ("transformers==4.54.0",)),
    ("transformers", ("transformers==4.57.6",)),
    ("transformers", ("transformers==5.24.0",)),
    ("trl", ("trl==1.16.0", "peft==0.21.2")),
)
"""Trainer and requirements, a trainer's newest release last. One without requirements is as it is installed."""


def newest(trainer: str) -> tuple[str, ...]:
    """The requirements of a trainer's newest release; none for one that the table lacks."""
    return next((requirements for name, requirements in reversed(RELEASES) if name == trainer), ())
