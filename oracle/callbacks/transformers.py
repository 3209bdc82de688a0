"""A callback of transformers that records what its `Trainer` trains."""

from __future__ import annotations

import os
from typing import Any

from oracle.recorder.session import Inside


def callback(folder: str | os.PathLike[str], **options: Any) -> Any:
    """A `TrainerCallback` that records from the beginning of training to its end: `Trainer(callbacks=[callback(...)])`.

    folder, options: as `oracle.record` takes them. What the trainer logs and evaluates is recorded, too.

    Raises:
        TraceError: the folder holds something.
    """
    from transformers import TrainerCallback

    inside = Inside(folder, options)

    class Record(TrainerCallback):
        """Changes nothing."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            inside.begin()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
            if logs and "loss" in logs:
                inside.metric("log", "loss", logs["loss"])

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **parts: Any) -> None:
            if metrics and "eval_loss" in metrics:
                inside.metric("evaluate", "loss", metrics["eval_loss"])

        def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            inside.end()

    return Record()
