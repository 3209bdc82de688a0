"""What a trainer's arguments are by default, and which of them its adapter passes, read where the trainer lives.

Run by file path in the candidate's environment, as a worker is: `python /path/to/oracle/profile/signatures.py`. A line
of JSON on the standard input, one on the standard output.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Signatures:
    """A trainer's arguments in one environment.

    defaults: "Class.argument" -> its default as Python writes it; what this version lacks is left out.
    passed: for each recipe that was asked about, what the adapter passes for it, in the same form.
    """

    defaults: Mapping[str, str] = field(default_factory=dict)
    passed: Sequence[Mapping[str, str]] = ()


def read(trainer: str, recipes: Sequence[Mapping[str, Any]], python: str, environment: Mapping[str, str]) -> Signatures:
    """The signatures of an adapter's trainer where an interpreter finds it; empty where it cannot be imported."""
    asked = json.dumps({"root": str(ROOT), "trainer": trainer, "recipes": recipes})
    done = subprocess.run(
        [python, __file__], input=asked, env=dict(environment), capture_output=True, text=True, check=False, timeout=300
    )
    return Signatures(**json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else Signatures()


def main() -> None:
    """Answer the question on the standard input."""
    asked = json.loads(sys.stdin.readline())
    sys.path[0] = asked["root"]
    from oracle import worker

    sys.path.pop(0)
    worker.isolate(asked["root"])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a framework prints is no answer
    from oracle.adapters.levers import TABLES
    from oracle.trainers import load_trainer
    from reference_loop.recipe import from_dict

    table = TABLES[asked["trainer"]]
    adapter: Any = load_trainer(asked["trainer"])
    names = {name for names in table.carries.values() for name in names}
    passed = []
    for values in asked["recipes"]:
        recipe = from_dict(values)
        told = {} if adapter.refuse(recipe) else adapter.passes(recipe)
        passed.append({name: shown(value) for name, value in told.items()})
    print(json.dumps({"defaults": dict(defaults(table.classes, names)), "passed": passed}), file=answers, flush=True)


def defaults(classes: Mapping[str, str], names: set[str]) -> list[tuple[str, str]]:
    """The default of every argument that its class has."""
    found = []
    for name in sorted(names):
        owner, _, argument = name.rpartition(".")
        kind = getattr(importlib.import_module(classes[owner]), owner)
        made = kind if inspect.isfunction(kind) else kind.__init__
        parameter = inspect.signature(made).parameters.get(argument)
        if parameter is not None:
            found.append((name, shown(_default(kind, argument, parameter))))
    return found


def _default(kind: type, argument: str, parameter: inspect.Parameter) -> Any:
    """The default, which a data class may make anew for every instance."""
    if dataclasses.is_dataclass(kind):
        column = kind.__dataclass_fields__.get(argument)
        if column is not None and column.default_factory is not dataclasses.MISSING:
            return column.default_factory()
    return parameter.default


def shown(value: Any) -> str:
    """A value as a user would write it."""
    if isinstance(value, enum.Enum):
        value = value.value
    return repr(value) if isinstance(value, str | int | float | bool | tuple | list | dict | None) else "..."


if __name__ == "__main__":
    main()
