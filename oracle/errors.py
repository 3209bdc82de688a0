"""Errors a user can act on: what was asked, what was found, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from reference_loop.recipe import RecipeError
from reference_loop.semantics import SemanticsError
from reference_loop.task import TaskError


class OracleError(Exception):
    """Something that was asked for and cannot be done. The message is all a user needs; exit code 2."""


class TrainerError(OracleError):
    """A trainer that cannot be loaded, with the trainers or classes that can."""


class EnvironmentRefused(OracleError):
    """An environment in which the candidate cannot run: a layer that pip cannot build, a Python without torch."""


class OutputError(OracleError):
    """A file or folder that cannot be written."""


USAGE_ERRORS = (OracleError, TaskError, RecipeError, SemanticsError)
"""Every exception whose message alone is what a user needs."""


def near_miss(word: str, choices: Iterable[str]) -> str:
    """A sentence that helps after an unknown word: the closest choice where one is close, then all of them.

    choices: the valid words, few enough to print.
    """
    known = sorted(choices)
    close = difflib.get_close_matches(word, known, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}known: {', '.join(known) or 'none'}"
