"""Trainers by name or by path: the adapters of public frameworks, and a class in a user's own file."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from oracle import pyfile
from oracle.errors import TrainerError, near_miss

ADAPTERS = Path(__file__).resolve().parent / "adapters"


class Trainer(Protocol):
    """Whatever trains one job."""

    def train(self, job: Any) -> object:
        """Train `job` to its end."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An adapter as `oracle list trainers` shows it.

    name: what `--trainer` takes.
    package: the distribution that it adapts.
    version: as installed here, None where it is not.
    """

    name: str
    package: str
    version: str | None


def list_trainers() -> list[Listed]:
    """All adapters, sorted by name, read from their source: neither they nor their frameworks are imported."""
    return [
        Listed(name=name, package=package, version=installed(package)) for name, package in sorted(_packages().items())
    ]


def installed(package: str) -> str | None:
    """The version of a distribution in this environment, None where it is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_file(asked: str) -> bool:
    """Whether `asked` means a class in a file, `path/to/file.py:Class`, rather than an adapter's name."""
    return ".py" in asked or "/" in asked


def absolute(asked: str) -> str:
    """`asked` with its file as an absolute path, so that it means the same in another folder; a name as it is."""
    if not is_file(asked):
        return asked
    path, colon, name = _split(asked)
    return f"{path.resolve()}{colon}{name}"


def find_trainer(asked: str) -> None:
    """Refuse a trainer that no environment could have, before anything is run or built.

    Raises:
        TrainerError: unknown name, no such file.
    """
    if is_file(asked):
        path = _split(asked)[0]
        if not path.is_file():
            raise TrainerError(f"trainer {asked!r}: there is no file {path.resolve()}: give path/to/file.py:Class")
    elif asked not in _packages():
        raise TrainerError(f"unknown trainer {asked!r}: {near_miss(asked, _packages())}; or path/to/file.py:Class")


OWN_IMPORTS = ("torch._dynamo",)
"""What torch itself imports at the first step of an optimizer; it takes most of a second."""

LATE_IMPORTS = {
    "fabric": ("lightning.fabric",),
    "fastai": ("fastai.basics", "fastai.callback.fp16", "fastai.callback.schedule", "fastai.callback.training"),
    "ignite": ("ignite.engine", "ignite.handlers"),
    "keras": (),  # what it is imported with, its backend among it, is the adapter's to set
    "lightning": ("lightning.pytorch",),
    "mmengine": ("mmengine.runner",),
    "skorch": ("skorch.callbacks",),
    "transformers": ("transformers.trainer",),
    "trl": ("trl.trainer.sft_trainer",),
}
"""What an adapter imports only when it trains, where that is more than its package, or has another name."""


def imports(asked: str) -> tuple[str, ...]:
    """Modules that a trainer will import: what a process that runs it many times can import once."""
    if is_file(asked):
        return OWN_IMPORTS
    return (*OWN_IMPORTS, f"oracle.adapters.{asked}", *LATE_IMPORTS.get(asked, (_packages()[asked],)))


def load_trainer(asked: str, arguments: Mapping[str, Any] | None = None) -> Trainer:
    """A trainer, ready to train, given an adapter's name or `path/to/file.py:Class`.

    arguments: what its class is constructed with; by default nothing.

    Raises:
        TrainerError: unknown name, missing package, no such file or class, a class that cannot be constructed
            with these arguments or has no `train`.
    """
    return _from_file(asked, arguments or {}) if is_file(asked) else _adapter(asked, arguments or {})


def stated_remedies(trainer: Trainer) -> dict[str, dict[str, Any]]:
    """The `remedies` that a trainer's class may state: for a cause, arguments that it can be constructed with.

    Keys are "knob" or, for one value that is to be restored, "knob = value"; see docs/trainers/README.md.

    Raises:
        TrainerError: they are something else, or hold what JSON cannot.
    """
    found = getattr(trainer, "remedies", {})
    name = type(trainer).__name__
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise TrainerError(
            f"trainer {name}: remedies must be a dict of dicts, found {found!r}: "
            'write remedies = {"knob": {"argument": value}}'
        )
    try:
        return json.loads(json.dumps(found))
    except (TypeError, ValueError) as error:
        raise TrainerError(f"trainer {name}: remedies hold what JSON cannot: {error}: use plain values") from error


def _adapter(name: str, arguments: Mapping[str, Any]) -> Trainer:
    """The adapter of that name, once its package is known to be here."""
    find_trainer(name)
    package = _packages()[name]
    if installed(package) is None:
        raise TrainerError(
            f"trainer {name!r} needs the package {package}, which this environment lacks: "
            f"pip install {package}, or --with '{package}==...'"
        )
    importlib.import_module("oracle.adapters.arguments").check(name, arguments)
    return importlib.import_module(f"oracle.adapters.{name}").Adapter(**arguments)


def _from_file(asked: str, arguments: Mapping[str, Any]) -> Trainer:
    """An instance of the class that `path/to/file.py:Class` names."""
    path, _, name = _split(asked)
    try:
        module = pyfile.load(path, "trainer file")
    except pyfile.FileRefused as refused:
        raise TrainerError(str(refused)) from refused.__cause__
    classes = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and callable(getattr(value, "train", None)) and value.__module__ == module.__name__
    }
    if not name:
        raise TrainerError(f"trainer {asked!r}: name its class, {path}:Class; classes with `train`: {_names(classes)}")
    kind = getattr(module, name, None)
    if kind is None:
        raise TrainerError(f"trainer file {path}: has no class {name!r}: {near_miss(name, classes)}")
    if not isinstance(kind, type):
        raise TrainerError(
            f"trainer file {path}: {name!r} is of type {type(kind).__name__}, not a class; "
            f"classes with `train`: {_names(classes)}"
        )
    if not callable(getattr(kind, "train", None)):
        raise TrainerError(
            f"trainer file {path}: class {name!r} has no train(self, job); classes with `train`: {_names(classes)}"
        )
    try:
        return kind(**arguments)
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        how = f"with {given}, as was asked" if arguments else "without arguments"
        raise TrainerError(
            f"trainer file {path}: {name}() {pyfile.raised(error, path.resolve())}: a trainer is constructed {how}"
        ) from error


def _split(asked: str) -> tuple[Path, str, str]:
    """`file.py:Class` as its path, the colon and the class; the last two are empty where no class is named."""
    path, colon, name = asked.rpartition(":")
    if not colon:
        path, name = asked, ""
    return Path(path).expanduser(), colon, name


def _names(classes: dict[str, type]) -> str:
    return ", ".join(sorted(classes)) or "none"


def _packages() -> dict[str, str]:
    """Each adapter's name and the distribution that it adapts, as its class states them in its source."""
    found = {}
    for file in ADAPTERS.glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == "Adapter":
                found[file.stem] = _constants(node).get("package", file.stem)
    return found


def _constants(node: ast.ClassDef) -> dict[str, str]:
    """The string constants that a class body assigns, by name."""
    constants = {}
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            constants.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return constants
