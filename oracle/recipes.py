"""The recipe of a command: a file or the task's own, with what the command line sets; some are refused."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from oracle.tasks import default_recipe
from reference_loop.recipe import Recipe, RecipeError, load
from reference_loop.semantics import KNOBS


def load_recipe(task: str, file: str | None, sets: Sequence[str]) -> Recipe:
    """The recipe that is asked for.

    file: a TOML file; None is the task's own recipe. sets: `KEY=VALUE` texts.

    Raises:
        RecipeError: it cannot be read, is no recipe, or asks for what no command can do.
    """
    recipe = load(file if file is not None else default_recipe(task), sets)
    refuse(recipe)
    return recipe


def refuse(recipe: Recipe) -> None:
    """Refuse what a recipe can say and no command can do.

    Raises:
        RecipeError: an accepted cause that no report can name.
    """
    for entry in recipe.accept:
        if entry.cause not in KNOBS and not entry.cause.startswith("hyperparameter."):
            close = get_close_matches(entry.cause, KNOBS, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            raise RecipeError(
                f"[[accept]] cause {entry.cause!r} is no knob and no hyperparameter.NAME: {guess}"
                "`oracle list knobs` shows them",
                "accept",
            )
