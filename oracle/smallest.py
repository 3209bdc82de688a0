"""The smallest recipe that still shows a cause: features off, fewer updates, smaller windows, as far as it holds.

Every step is a check of its own, in warm processes. A step is kept if the same cause is still confirmed and nothing
came that was not there before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from oracle import environment, guard, tasks, trainers
from oracle.check import Request, check
from oracle.errors import OracleError
from oracle.replays import Server
from oracle.result import Cause, Result
from reference_loop.recipe import Clip, Optimizer, Precision, Recipe

MOST_RERUNS = 12
UNCLIPPED = Clip(max_norm=float("inf"))
PLAIN = Optimizer(name="sgd", lr=0.1)

FEATURES: dict[str, Callable[[Recipe], Recipe]] = {
    "log": lambda recipe: replace(recipe, log=None),
    "evaluate": lambda recipe: replace(recipe, evaluate=None),
    "checkpoint": lambda recipe: replace(recipe, checkpoint=None),
    "ema": lambda recipe: replace(recipe, ema=None),
    "workers": lambda recipe: replace(recipe, workers=0),
    "schedule": lambda recipe: replace(recipe, schedule=None),
    "clip": lambda recipe: replace(recipe, clip=UNCLIPPED),
    "precision": lambda recipe: replace(recipe, precision=Precision(), scaler=None),
    "shuffle": lambda recipe: replace(recipe, shuffle=False),
    "drop_last": lambda recipe: replace(recipe, drop_last=False),
    "optimizer": lambda recipe: replace(recipe, optimizer=PLAIN),
}
"""How each feature of a recipe is switched off."""


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest recipe that was found, after so many checks."""

    recipe: Recipe
    reruns: int


def smallest(request: Request, result: Result, cause: Cause, most: int, say: Callable[[str], None]) -> Smallest:
    """Shrink a request's recipe as long as `cause` stays confirmed, with at most `most` checks.

    result: what the request gave.
    """
    if most == 0:
        return Smallest(recipe=request.recipe, reruns=0)
    place = environment.prepare(request.requirements, python=request.python, allow_torch=request.allow_torch)
    with guard.folder() as folder:
        server = Server(
            folder,
            task=str(tasks.find_task(request.task)),
            imports=trainers.imports(request.trainer),
            threads=request.threads,
            python=place.python,
            layer=place.layer,
        )
        try:
            search = _Search(request, cause, most, say, server, result)
            search.shrink()
            return Smallest(recipe=search.recipe, reruns=search.reruns)
        finally:
            server.close()


class _Search:
    """Greedy: a step that still shows the cause is kept, the next one starts from it."""

    def __init__(
        self, request: Request, cause: Cause, most: int, say: Callable[[str], None], server: Server, result: Result
    ) -> None:
        self.request, self.cause, self.most, self.say, self.server = request, cause, most, say, server
        self.recipe, self.result, self.reruns = request.recipe, result, 0

    def shrink(self) -> None:
        """Go through all steps, as many as `most` lets."""
        self._features()
        self._try(lambda recipe: replace(recipe, epochs=1) if recipe.epochs else recipe)
        self._try(self._updates)
        for step in (
            lambda recipe: replace(recipe, accumulation=min(2, recipe.accumulation), batch_size=1),
            lambda recipe: replace(recipe, accumulation=min(2, recipe.accumulation)),
            lambda recipe: replace(recipe, batch_size=1),
        ):
            if self.recipe.updates is not None:  # otherwise an epoch is read whatever its windows are
                self._try(step)

    def _features(self) -> None:
        """All features off at once, or as many as can be, one after another."""

        def none(recipe: Recipe) -> Recipe:
            for off in FEATURES.values():
                recipe = off(recipe)
            return recipe

        if self._try(none):
            return
        for off in FEATURES.values():
            self._try(off)

    def _updates(self, recipe: Recipe) -> Recipe:
        """Only the updates up to where the cause shows."""
        shown = next(cause for cause in self.result.causes if cause.knob == self.cause.knob)
        return replace(recipe, epochs=None, updates=max(shown.at.update, 0) + 1)

    def _try(self, step: Callable[[Recipe], Recipe]) -> bool:
        """Keep a step if its recipe is another one and still shows the cause; says whether it does."""
        recipe = step(self.recipe)
        if recipe == self.recipe:
            return True
        if self.reruns >= self.most:
            return False
        self.reruns += 1
        self.say(f"looking for a smaller recipe, {self.reruns} of at most {self.most} reruns")
        try:
            request = replace(self.request, recipe=recipe, folder=None, launch=None, seeds=0, remedies=False)
            result = check(request, server=self.server)
        except OracleError:  # what the trainer refuses shows nothing
            return False
        if not self._shows(result):
            return False
        self.recipe, self.result = recipe, result
        return True

    def _shows(self, result: Result) -> bool:
        """Whether the cause is confirmed, and everything else was there before."""
        wanted = next((cause for cause in result.causes if cause.knob == self.cause.knob), None)
        if result.verdict != "diverged" or wanted is None or wanted.status != "confirmed":
            return False
        if not wanted.knob.startswith("hyperparameter.") and wanted.candidate != self.cause.candidate:
            return False
        return {*_names(result)} <= {*_names(self.result)} and len(result.unexplained) <= len(self.result.unexplained)


def _names(result: Result) -> Iterator[str]:
    yield from (cause.knob for cause in result.causes)
