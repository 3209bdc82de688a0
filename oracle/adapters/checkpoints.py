"""What a run saved under the number of its updates, for the trainers that leave the names to the user."""

from __future__ import annotations

from pathlib import Path

from oracle.errors import TrainerError


def newest(folder: Path, trainer: str) -> tuple[int, Path]:
    """The newest of the saves `step_N` in a run's folder, files or folders: the number of updates, and its path.

    Raises:
        TrainerError: there is none.
    """
    found = {int(path.stem.removeprefix("step_")): path for path in folder.glob("step_*")}
    if not found:
        raise TrainerError(f"trainer {trainer!r}: no checkpoint in {folder} to resume from: state [checkpoint] every")
    return max(found.items())
