"""Whether runs on several ranks can be made: the one place that decides it for every check."""

from __future__ import annotations

from oracle import recipes
from reference_loop.recipe import RecipeError, from_dict


def refusal() -> str | None:
    """Why a recipe on two ranks is refused; None where it is not."""
    try:
        recipes.refuse(from_dict({"parallel": {"ranks": 2}}))
    except RecipeError as error:
        return str(error)
    return None
