"""Tasks by name or by path: those that come with the oracle, and a user's own files."""

from __future__ import annotations

import re
from pathlib import Path

from oracle import pyfile
from oracle.errors import near_miss
from reference_loop.task import Task, TaskError

ROOT = Path(__file__).resolve().parent.parent


def fixtures() -> Path | None:
    """The folder of built-in tasks and recipes: beside the packages in a source tree, inside `oracle` in a wheel."""
    for folder in (ROOT / "fixtures", ROOT / "oracle" / "fixtures"):
        if folder.is_dir():
            return folder
    return None


def list_tasks() -> dict[str, Path]:
    """The built-in tasks: name to file, sorted by name."""
    folder = fixtures()
    files = sorted((folder / "tasks").glob("*.py")) if folder else []
    return {file.stem: file for file in files if not file.stem.startswith("_")}


def find_task(asked: str) -> Path:
    """The file of a task, given its built-in name or a path. A path has a slash or ends in `.py`.

    Raises:
        TaskError: no such name, no such file.
    """
    builtin = list_tasks()
    if asked in builtin:
        return builtin[asked]
    path = Path(asked).expanduser()
    if "/" not in asked and path.suffix != ".py":
        raise TaskError(f"unknown task {asked!r}: {near_miss(asked, builtin)}; or give the path of a task file")
    if not path.is_file():
        found = f"{path.resolve()} is a folder" if path.is_dir() else f"there is no file {path.resolve()}"
        raise TaskError(f"task {asked!r}: {found}: give a built-in task's name or a task file's path")
    return path.resolve()


def default_recipe(asked: str) -> Path | None:
    """The recipe that comes with a built-in task; None for a task of the user's own, which has the plain defaults."""
    folder = fixtures()
    path = folder / "recipes" / f"{asked}.toml" if folder and asked in list_tasks() else None
    return path if path and path.is_file() else None


def load_task(asked: str) -> Task:
    """The task that a built-in name or a path names.

    Raises:
        TaskError: not found, the file raises, it has no `task`, `task` is not a Task, or a field is missing.
    """
    path = find_task(asked)
    try:
        module = pyfile.load(path, "task file")
    except pyfile.FileRefused as refused:
        raise TaskError(_missing_field(path, refused.__cause__) or str(refused)) from refused.__cause__
    if not hasattr(module, "task"):
        fields = "name=..., model=..., train_data=..., loss=..."
        raise TaskError(f"task file {path}: has no `task`: write task = Task({fields})")
    if not isinstance(module.task, Task):
        raise TaskError(
            f"task file {path}: `task` is of type {type(module.task).__name__}, not Task: "
            "write from reference_loop.task import Task; task = Task(...)"
        )
    return module.task


def _missing_field(path: Path, error: BaseException | None) -> str | None:
    """What to say when `Task(...)` lacks a field or has an unknown one; None for every other error."""
    text = str(error)
    if not isinstance(error, TypeError) or "Task.__init__()" not in text:
        return None
    names = re.findall(r"'(\w+)'", text)
    if "missing" in text:
        return f"task file {path}: the task lacks {', '.join(names)}: add {', '.join(f'{name}=...' for name in names)}"
    known = near_miss(names[-1], Task.__dataclass_fields__)
    return f"task file {path}: a task has no field {', '.join(names)}: {known}"
