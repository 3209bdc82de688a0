"""Functions and methods replaced while a recorder is installed, and put back exactly."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

# Gets the original, then the call's own arguments, and returns what the call returns.
Around = Callable[..., Any]


class Patches:
    """What was replaced, in order; `undo` puts it back, last first."""

    def __init__(self) -> None:
        self._undone: list[Callable[[], Any]] = []

    def method(self, owner: type, name: str, around: Around) -> None:
        """Run `around` in place of a method that `owner` itself defines."""
        original = vars(owner)[name]
        setattr(owner, name, _wrap(original, around))
        self._undone.append(lambda: setattr(owner, name, original))

    def function(self, module: ModuleType, name: str, around: Around) -> None:
        """Run `around` in place of a function of a module, also where it was imported under the same name already."""
        original = vars(module)[name]
        wrapper = _wrap(original, around)
        _swap(name, original, wrapper)
        self._undone.append(lambda: _swap(name, wrapper, original))

    def instance(self, owner: Any, name: str, around: Around) -> None:
        """Run `around` in place of one object's method."""
        setattr(owner, name, _wrap(getattr(owner, name), around))
        self._undone.append(lambda: delattr(owner, name))

    def also(self, undo: Callable[[], Any]) -> None:
        """Call this at `undo` too."""
        self._undone.append(undo)

    def undo(self) -> None:
        """Put everything back."""
        while self._undone:
            self._undone.pop()()


def unless_compiling(probe: Callable[..., None]) -> Callable[..., None]:
    """A hook that is nothing to torch.compile and cannot change what it is shown."""

    def hook(*args: Any) -> None:
        if not torch.compiler.is_compiling():
            probe(*args)

    return hook


def _wrap(original: Callable[..., Any], around: Around) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    return wrapper


def _swap(name: str, old: Any, new: Any) -> None:
    """Set `name` to `new` in every loaded module where it is `old`.

    Reads module dictionaries, never attributes: an attribute of a lazy module would import it.
    """
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)
