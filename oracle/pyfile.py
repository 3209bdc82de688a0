"""A user's Python file, loaded by its path as a module."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType


class FileRefused(Exception):
    """A file that could not be loaded; the message says why, the cause is the file's own exception."""


def load(path: Path, what: str) -> ModuleType:
    """The module that a file defines, run once per process; its neighbours can be imported as in a script.

    path: the file.
    what: how messages call it, e.g. "task file".

    The module is registered under a name of its own, so two files called `train.py` do not collide and
    dataclasses and pickles find their module.

    Raises:
        FileRefused: no such file, or the file raised while it was loaded.
    """
    path = path.expanduser().resolve()
    if not path.is_file():
        found = f"{path} is a folder" if path.is_dir() else f"there is no {path}"
        raise FileRefused(f"{what} {path.name}: {found}: check the path")
    name = f"{path.stem}_{hashlib.blake2b(bytes(path), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileRefused(f"{what} {path}: not a Python file: give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise FileRefused(f"{what} {path}: {_why(error, path)}") from error
    return module


def raised(error: BaseException, path: Path) -> str:
    """What was raised, and in which line of a file: "raised ValueError in line 3: no data"; the first line of it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" in line {lines[-1]}" if lines else ""
    told = (str(error).strip().splitlines() or [""])[0]
    return f"raised {type(error).__name__}{place}{': ' if told else ''}{told}"


def _why(error: BaseException, path: Path) -> str:
    """One sentence on an exception that a file raised while it was loaded."""
    if isinstance(error, ModuleNotFoundError):
        return f"needs the package {error.name}, which this environment lacks: pip install it, or use --with"
    if isinstance(error, SystemExit):
        return f'{raised(error, path)}: put what a script does under if __name__ == "__main__"'
    return raised(error, path)
