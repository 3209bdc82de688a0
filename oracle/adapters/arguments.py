"""What an adapter is constructed with, by "Class.argument": refused where its trainer has no such argument."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any

from oracle.adapters.levers import TABLES
from oracle.errors import TrainerError, near_miss

ENVIRONMENT = "environ"
"""The owner of what is an environment variable of the trainer rather than an argument."""


def told(owner: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one class, by their own names."""
    return {name.rpartition(".")[2]: value for name, value in arguments.items() if name.startswith(f"{owner}.")}


def one_process(recipe: Any) -> str | None:
    """Why an adapter that trains in one process cannot train a recipe; None where it asks for one rank."""
    ranks = recipe.parallel.ranks
    return None if ranks == 1 else f"parallel.ranks = {ranks}, and this adapter trains in one process: set it to 1"


def check(trainer: str, arguments: Mapping[str, Any]) -> None:
    """Refuse an argument that no class of the trainer takes, in the version that is installed here.

    Raises:
        TrainerError: says which, and what there is.
    """
    if not arguments or trainer not in TABLES:
        return
    classes = TABLES[trainer].classes
    os.environ.update(TABLES[trainer].surroundings)
    own = {name for lever in TABLES[trainer].levers for name in lever.arguments}
    own = {name for name in own if name.rpartition(".")[0] not in (*classes, ENVIRONMENT)}
    for name, value in arguments.items():
        owner, _, argument = name.rpartition(".")
        if name in own:
            if not isinstance(value, bool):
                raise TrainerError(f"trainer {trainer!r}: {name} must be true or false, found {value!r}")
        elif owner == ENVIRONMENT:
            if not isinstance(value, str):
                raise TrainerError(f"trainer {trainer!r}: {name} must be a text, found {value!r}: write \"'{value}'\"")
        elif owner not in classes:
            known = [*(f"{kind}.ARGUMENT" for kind in classes), f"{ENVIRONMENT}.VARIABLE", *own]
            raise TrainerError(f"trainer {trainer!r} has no argument {name!r}: {near_miss(name, known)}")
        elif not _takes(classes[owner], owner, argument):
            raise TrainerError(f"trainer {trainer!r}: {owner} of {classes[owner]} has no argument {argument!r}")


def _takes(module: str, owner: str, argument: str) -> bool:
    """Whether a class can be constructed with an argument."""
    kind = getattr(importlib.import_module(module), owner, None)
    if kind is None:
        return False
    parameters = inspect.signature(kind if inspect.isfunction(kind) else kind.__init__).parameters
    return argument in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
