"""The file of a golden: what was asked, what was seen, in which surroundings, and why it is as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from oracle.errors import OracleError
from oracle.golden.fingerprint import END, Fingerprint
from oracle.recipes import load_recipe
from oracle.result import write_text
from oracle.tasks import list_tasks
from oracle.trainers import is_file
from reference_loop.moments import MOMENTS
from reference_loop.recipe import Recipe, RecipeError, from_dict, to_dict

FORMAT = 1
DTYPES = ("float64", "float32", "bfloat16", "float16")
DIGEST = "blake2b-128"
"""Of recorded values: every environment has it."""


class StaleGolden(OracleError):
    """A golden that nothing can be held against any more: why, and how to remake it."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a golden trains, as the command that recorded it was asked.

    task, trainer, recipe_file: a name, or a path relative to the golden's folder.
    recipe: what file and `sets` meant then.
    """

    task: str
    trainer: str
    recipe_file: str | None
    sets: tuple[str, ...]
    recipe: dict[str, Any]
    requirements: tuple[str, ...]
    threads: int
    device: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a run showed.

    surroundings: versions and the processor, by name. sources: digests of the task's and the trainer's files, by name.
    given, form: digests of what training is given, and of it without the values of floats.
    sketch: of these values, as `oracle.golden.sketch` makes it; empty where they were too many to be kept in full.
    losses: the reference's of update 0, as [value, dtype].
    reference: a digest an update. candidate: a digest for each update and kind.
    verdict, causes: how the candidate stood against the reference; a cause as [knob, reference, candidate, effect,
        status]. understood: whether the causes explain every difference.
    """

    surroundings: dict[str, str]
    sources: dict[str, str]
    verdict: str
    causes: list[list[Any]]
    understood: bool
    given: str
    form: str
    sketch: list[float]
    losses: list[list[Any]]
    reference: dict[str, str]
    candidate: Fingerprint


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Why a golden is as it is: the day (ISO), the reason, and in short what moved since the entry before."""

    date: str
    reason: str
    moved: str = ""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One golden. path: its file. history: oldest first."""

    path: Path
    asked: Asked
    seen: Seen
    history: tuple[Entry, ...]

    @property
    def remake(self) -> str:
        """How to renew it."""
        return f"oracle golden update {self.path} --reason '...'"

    def recipe(self) -> Recipe:
        """The recipe as its file and what was set say today.

        Raises:
            RecipeError: they say nothing that can be used.
        """
        file = self.asked.recipe_file
        if file is not None and not isinstance(file, str):
            raise RecipeError(f"recipe_file is {type(file).__name__}, not a path", "recipe_file")
        return load_recipe(self.asked.task, None if file is None else self.located(file), self.asked.sets)

    def same_recipe(self) -> Recipe:
        """The recipe, if it is the recorded one.

        Raises:
            StaleGolden: it is another one today, or cannot be read.
        """
        try:
            old, recipe = from_dict(self.asked.recipe), self.recipe()
        except RecipeError as error:
            raise StaleGolden(f"{self.path} is stale: {error}: then run {self.remake}") from error
        changed = list(_changed(*(_flat(to_dict(replace(one, accept=()))) for one in (old, recipe))))
        if changed:
            raise StaleGolden(f"{self.path} is stale: its recipe changed ({', '.join(changed)}): run {self.remake}")
        return recipe

    @property
    def task(self) -> str:
        """The task as a check takes it."""
        return self.asked.task if self.asked.task in list_tasks() else self.located(self.asked.task)

    @property
    def trainer(self) -> str:
        """The trainer as a check takes it."""
        return self.located(self.asked.trainer) if is_file(self.asked.trainer) else self.asked.trainer

    def located(self, name: str) -> str:
        """A path relative to the golden's folder, as one relative to where we are."""
        return os.path.relpath(self.path.resolve().parent / name)

    def write(self) -> None:
        """Write the file, whole or not at all. Raises OutputError."""
        content = {
            "format": FORMAT,
            "about": f"A golden of trainer-oracle. Check it: oracle golden check FILE. {_RENEW}",
            "asked": asdict(self.asked),
            "history": [asdict(entry) for entry in self.history],
            "seen": asdict(self.seen),
        }
        write_text(self.path, json.dumps(content, indent=1, allow_nan=False) + "\n")


_RENEW = "Renew it: oracle golden update FILE --reason '...'."


def relative(name: str, path: Path) -> str:
    """A file's name as a golden at `path` keeps it: relative to its folder."""
    return os.path.relpath(Path(name).expanduser().resolve(), path.resolve().parent)


def read(path: Path) -> Golden:
    """The golden in a file.

    Raises:
        OracleError: there is none. StaleGolden: it is of another format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OracleError(
            f"cannot read the golden {path}: {error.strerror}: record one with oracle golden record TASK --trainer T "
            f"-o {path} --reason '...'"
        ) from error
    except ValueError as error:
        raise OracleError(f"{path} is no golden: it is not JSON: {error}") from error
    if not isinstance(content, dict) or "format" not in content:
        raise OracleError(f"{path} is no golden: it has no format: oracle golden record makes one")
    if content["format"] != FORMAT:
        raise StaleGolden(
            f"{path} is stale: it has format {content['format']!r}, this version reads {FORMAT}: {_anew(content)}"
        )
    try:
        golden = Golden(
            path=path,
            asked=_table(Asked, content["asked"]),
            seen=_table(Seen, content["seen"]),
            history=tuple(_table(Entry, entry) for entry in content["history"]),
        )
        _check(golden)
    except (KeyError, TypeError, ValueError) as error:
        raise StaleGolden(f"{path} is stale: it cannot be read ({error}): {_anew(content)}") from error
    asked = golden.asked
    return replace(golden, asked=replace(asked, sets=tuple(asked.sets), requirements=tuple(asked.requirements)))


def _anew(content: Mapping[str, Any]) -> str:
    asked = content.get("asked")
    command = asked.get("command") if isinstance(asked, Mapping) else None
    return f"remove it and run {command or 'oracle golden record'}"


def _table(kind: type, content: Any) -> Any:
    """A dataclass of flat JSON data. Raises TypeError for a field too many, missing, or of another type of JSON."""
    if not isinstance(content, dict):
        raise TypeError(f"{kind.__name__.lower()} is no table")
    made = kind(**content)
    for field in fields(kind):
        value, name = getattr(made, field.name), str(field.type).partition("[")[0]
        wanted = {"str": str, "bool": bool, "int": int, "dict": dict, "list": list, "tuple": list, "Fingerprint": dict}
        if name in wanted and type(value) is not wanted[name]:
            raise TypeError(f"{field.name} is {value!r}")
    return made


def _check(golden: Golden) -> None:
    """Raise ValueError or TypeError for what flat tables do not say: places, losses, causes, a history."""
    places = {f"{moment} {kind}" for moment, kinds in MOMENTS.items() for kind in kinds}
    for update in (golden.seen.candidate | golden.seen.reference).keys() - {END}:
        int(update)
    for update, digests in golden.seen.candidate.items():
        if not isinstance(digests, dict) or not set(digests) <= places:
            raise ValueError(f"update {update} has unknown places")
    for loss, dtype in golden.seen.losses:
        if not isinstance(loss, float) or dtype not in DTYPES:
            raise ValueError(f"a loss is {loss!r} of {dtype!r}")
    if not all(isinstance(number, float) for number in golden.seen.sketch):
        raise ValueError("its sketch is no list of numbers")
    if not all(isinstance(cause, list) and len(cause) == 5 for cause in golden.seen.causes):
        raise ValueError("a cause has other than five parts")
    if not golden.history:
        raise ValueError("its history is empty")


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{key} {old.get(key, 'unset')} -> {new.get(key, 'unset')}"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found
