"""What experiments need of an evaluation that is going on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oracle.check import Request
from oracle.environment import Environment
from oracle.replays import Server
from oracle.tasks import fixtures
from reference_loop.recipe import Recipe


def baseline() -> Path:
    """The file of the reference loop as a trainer."""
    return Path(str(fixtures())) / "trainers" / "loop.py"


@dataclass
class Session:
    """One evaluation.

    place: the candidate's environment. server: runs it warm. folder: scratch. traces: where traces are kept.
    until: when the budget is spent, of `time.monotonic`; None without one.
    """

    trainer: str
    requirements: tuple[str, ...]
    python: str | None
    place: Environment
    server: Server
    folder: Path
    traces: Path
    progress: Callable[[str], None]
    until: float | None = None

    @property
    def left(self) -> float:
        """The seconds that a run may take."""
        return 300.0 if self.until is None else max(5.0, min(300.0, self.until - time.monotonic()))

    def request(self, task: str, recipe: Recipe) -> Request:
        """What to check."""
        return Request(
            task=task,
            trainer=self.trainer,
            recipe=recipe,
            requirements=self.requirements,
            python=self.python,
            remedies=False,
            timeout=self.left,
        )
