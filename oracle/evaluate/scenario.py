"""Scenarios: what somebody who must choose a trainer wants of it, as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle.errors import OracleError, near_miss
from oracle.evaluate.schema import DIMENSIONS
from oracle.result import ResultError, decode
from reference_loop.recipe import Recipe, RecipeError, from_dict

FOLDER = Path(__file__).with_name("scenarios")
WEIGHTS = ("informs", "matters", "decides")


class ScenarioError(OracleError):
    """A scenario that is none, with what was found and what to do."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a team allows; each is compared with an interval, never with a number alone.

    tolerance: relative difference of the validation metric. overhead: of the time per update, relative, on the model
    that `size` names: small, medium or large. memory_mib: more than the baseline's peak. growth_kib: per update.
    start_up_s: until the first update has ended. seeds: how many.
    """

    tolerance: float = 0.01
    overhead: float = 0.15
    size: str = "large"
    memory_mib: float = 1024.0
    growth_kib: float = 16.0
    start_up_s: float = 60.0
    seeds: int = 5


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scenario.

    weights: of each dimension: `decides`, a failure there speaks against adopting; `matters`, it is a condition;
        `informs`, it is told. required: checks that decide whatever their dimension's weight.
    task, recipe: what consistency is measured on.
    """

    name: str
    about: str
    weights: Mapping[str, str]
    required: tuple[str, ...]
    task: str
    recipe: Mapping[str, Any]
    settings: Settings = field(default_factory=Settings)

    @property
    def asked(self) -> Recipe:
        """The recipe."""
        return from_dict(numbers(self.recipe))


def numbers(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe whose infinities are numbers again; JSON holds them as text."""
    clip = recipe.get("clip")
    return dict(recipe) if not clip else {**recipe, "clip": {name: float(value) for name, value in clip.items()}}


def names() -> list[str]:
    """The built-in scenarios."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def load(asked: str) -> Scenario:
    """The scenario of a built-in name, or in a TOML file.

    Raises:
        ScenarioError: there is none, or a field is unknown, missing or of the wrong type.
    """
    file = FOLDER / f"{asked}.toml" if asked in names() else Path(asked)
    if not file.is_file():
        raise ScenarioError(f"unknown scenario {asked!r}: {near_miss(asked, names())}; or give a TOML file")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        scenario = decode(Scenario, {"recipe": {}, "settings": {}, "required": [], **content}, "scenario")
        scenario.asked  # noqa: B018 - refuses what is no recipe
    except (tomllib.TOMLDecodeError, ResultError, RecipeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"scenario {asked}: {error}: see docs/method.md") from error
    wrong = {name: weight for name, weight in scenario.weights.items() if weight not in WEIGHTS}
    if wrong or set(scenario.weights) - set(DIMENSIONS):
        raise ScenarioError(
            f"scenario {asked}: weights are {', '.join(DIMENSIONS)}, each one of {', '.join(WEIGHTS)}; "
            f"found {dict(scenario.weights)}"
        )
    if scenario.settings.size not in ("small", "medium", "large") or scenario.settings.seeds < 3:
        raise ScenarioError(f"scenario {asked}: settings.size is small, medium or large, settings.seeds 3 or more")
    return scenario
