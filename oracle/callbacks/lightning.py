"""A callback of Lightning that records what its `Trainer` fits."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from oracle.recorder.session import Inside

NAMES = ("lightning.pytorch", "pytorch_lightning")  # two packages of one content: the one that the program imported


def callback(folder: str | os.PathLike[str], **options: Any) -> Any:
    """A `Callback` that records from the beginning of `fit` to its end: `Trainer(callbacks=[callback(...)])`.

    folder, options: as `oracle.record` takes them.

    Raises:
        TraceError: the folder holds something. ImportError: Lightning is not installed.
    """
    inside = Inside(folder, options)

    class Record(_library().Callback):  # type: ignore[misc]
        """Changes nothing."""

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            inside.begin(model=pl_module)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            inside.end(exception)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            inside.end()

    return Record()


def _library() -> Any:
    """Lightning, under the name that the program uses.

    Raises:
        ImportError: it has neither name.
    """
    for name in (*(name for name in NAMES if name in sys.modules), *NAMES[:1]):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(NAMES[1])
