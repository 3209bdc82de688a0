"""One cell of the matrix: a trainer, a task and a recipe; what the oracle said of them, kept as a JSON file."""

from __future__ import annotations

import functools
import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

from oracle import environment, source, trainers
from oracle.candidate import CandidateUsage
from oracle.check import Request, check
from oracle.cluster import Worker
from oracle.errors import EnvironmentRefused
from oracle.evaluate.record import digest
from oracle.matrix import recipes
from oracle.recipes import load_recipe
from oracle.releases import newest
from oracle.report import phrases
from oracle.result import Cause, Result, encode, write_text
from oracle.tasks import find_task

LIMIT = 120.0  # seconds that each of the candidate's runs may take
NEEDS: dict[str, tuple[str, ...]] = {"llama": newest("transformers")}
"""What a task's model is built with, where that is more than torch; a layer that has another version keeps it."""

State = Literal["match", "rounding", "explained", "suggested", "unexplained", "refused", "failed", "absent"]
WRONG: tuple[State, ...] = ("suggested", "unexplained", "failed", "absent")
"""States in which nothing was proven to be bit-identical."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is to be run.

    requirements: of the trainer. variant: a name of `recipes.VARIANTS`.
    """

    trainer: str
    requirements: tuple[str, ...]
    task: str
    variant: str

    @property
    def row(self) -> tuple[str, tuple[str, ...], str]:
        """Whom the cells of one row have in common."""
        return self.trainer, self.requirements, self.variant

    @property
    def all_requirements(self) -> tuple[str, ...]:
        """Those of the trainer, and of the task where the trainer's say nothing of it."""
        own = {text.partition("==")[0] for text in self.requirements}
        return (*self.requirements, *(text for text in NEEDS.get(self.task, ()) if text.partition("==")[0] not in own))

    @property
    def request(self) -> Request:
        """The check."""
        return Request(
            task=self.task,
            trainer=self.trainer,
            recipe=load_recipe(self.task, None, recipes.sets(self.variant, self.task)),
            arguments=recipes.arguments(self.variant, self.trainer),
            requirements=self.all_requirements,
            remedies=False,
            timeout=LIMIT,
        )

    @property
    def command(self) -> str:
        """What runs it again, alone."""
        options = [
            *(word for text in self.all_requirements for word in ("--with", text)),
            *(word for text in recipes.sets(self.variant, self.task) for word in ("--set", text)),
            *(
                word
                for name, value in recipes.arguments(self.variant, self.trainer).items()
                for word in ("--argument", f"{name}={json.dumps(value)}")
            ),
        ]
        return shlex.join(["oracle", "check", self.task, "--trainer", self.trainer, *options])

    def file(self, folder: Path) -> Path:
        """Where its answer is kept."""
        release = digest(self.requirements) if self.requirements else "here"
        return folder / f"{self.trainer}-{release}-{self.variant}-{self.task}.json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the oracle said of a cell.

    key: of what it was said; another key is another question.
    causes: "knob = value" of those that are proven, "or 2 like it" where the task cannot tell it from others.
    doubts: the same of those that are only suggested.
    places: of differences that no cause explains. reason: why there is no more to say, in one sentence.
    rounds: where nothing but the noise floor covers a difference.
    versions: of the packages that the run reported.
    """

    key: str
    state: State
    causes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    rounds: str = ""
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def surroundings(cell: Cell, say: Callable[[str], None] = lambda words: None) -> environment.Environment:
    """Where a cell runs, its layer built if it is not there. say: as `environment.prepare` takes it.

    Raises:
        EnvironmentRefused: it cannot be built, or lacks the trainer's package.
    """
    place = environment.prepare(cell.all_requirements, say=say)
    if canonicalize_name(package := _package(cell.trainer)) not in place.versions:
        raise EnvironmentRefused(
            f"{package} is not installed here: add a release of {cell.trainer} to oracle/releases.py"
        )
    return place


def key(cell: Cell, place: environment.Environment) -> str:
    """What an answer rests on: our source, the versions in the layer and of torch, and what is asked."""
    names = ("torch", "numpy", canonicalize_name(_package(cell.trainer)))
    versions = {name: place.versions.get(name) for name in names}
    request = cell.request
    asked = [request.recipe, request.arguments, request.task, request.trainer]
    return digest([source.digest(), versions, dict(place.holds), environment.inspect(place.python).version, asked])


@functools.cache
def _package(trainer: str) -> str:
    return next(one.package for one in trainers.list_trainers() if one.name == trainer)


def kept(file: Path) -> Answer | None:
    """The answer in a file; None where there is none that can be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        lists = {name: tuple(content[name]) for name in ("causes", "doubts", "places")}
        return Answer(**{**content, **lists})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(answer: Answer, file: Path) -> None:
    """Write an answer, whole or not at all."""
    write_text(file, json.dumps(encode(asdict(answer)), indent=1, ensure_ascii=False) + "\n")


def run(worker: Worker, cell: Cell) -> Answer:
    """Run a cell in a warm process."""
    started = time.monotonic()
    try:
        place = surroundings(cell)
    except EnvironmentRefused as error:
        return Answer(key="", state="absent", reason=_line(error))
    known = key(cell, place)
    try:
        needy = str(find_task(cell.task)) if cell.task in NEEDS else None  # what it imports is imported once
        imports = trainers.imports(cell.trainer)
        server = worker.server(imports, task=needy, python=place.python, layer=place.layer)
        found = answered(check(cell.request, server=server))
    except CandidateUsage as error:
        found = Answer(key="", state="refused", reason=_line(error))
    except Exception as error:  # one cell's fault is no reason to leave the others out
        found = Answer(key="", state="failed", reason=f"{type(error).__name__}: {_line(error)}")
    return replace(found, key=known, seconds=round(time.monotonic() - started, 2))


def answered(result: Result) -> Answer:
    """What a result says, short enough for a cell."""
    proven = tuple(_cause(one) for one in result.causes if _proven(one))
    doubts = tuple(_cause(one) for one in result.causes if not _proven(one))
    places = tuple(phrases.place(one.site) for one in result.unexplained)
    state = _state(result, bool(doubts), bool(places))
    reason = _ended(result) if state == "failed" else _doubt(result)
    return Answer(
        key="", state=state, causes=proven, doubts=doubts, places=places, rounds=_rounds(result), reason=reason,
        versions={name: of for name, of in result.candidate.get("versions", {}).items() if name != "python"},
    )  # fmt: skip


def _state(result: Result, doubted: bool, open_places: bool) -> State:
    if result.verdict in ("not_comparable", "nondeterministic"):
        return "failed"
    outcome = result.candidate_outcome
    if outcome is not None and outcome.status != "completed":
        return "failed"
    if open_places:
        return "unexplained"
    if doubted:
        return "suggested"
    if result.verdict == "diverged":
        return "explained"
    return "match" if result.verdict == "match" else "rounding"


def _proven(cause: Cause) -> bool:
    """Whether a replay with the cause is bit-identical; with other values of which this task cannot tell it, too."""
    told = cause.indistinguishable and cause.identical_through_update is not None
    return cause.status == "confirmed" or bool(told)


def _cause(cause: Cause) -> str:
    """A cause in a few words: "optimizer.decay_set = names or 2 like it"."""
    others = f" or {len(cause.indistinguishable)} like it" if cause.indistinguishable else ""
    return f"{cause.knob} = {phrases.value(cause.candidate)}{others}"


def _doubt(result: Result) -> str:
    """Why causes are only suggested, a clause each."""
    left = "an unexplained difference stands beside it" if result.unexplained else "what it leaves is not bit-identical"
    clauses = []
    for cause in result.causes:
        if not _proven(cause):  # a replay that proves something, and is doubted, has thin evidence
            thin = cause.identical_through_update is not None and cause.evidence
            clauses.append(f"{_cause(cause)}: {cause.evidence[0] if thin else left}")
    return "; ".join(clauses)


def _rounds(result: Result) -> str:
    """Where a difference is covered by the noise floor alone; "" where all that differs has a cause."""
    first = result.first_divergence
    if result.verdict == "rounding" and not result.causes and first is not None:
        return phrases.place(first)
    last = result.compared.updates - 1
    through = [one.identical_through_update for one in result.causes if one.identical_through_update is not None]
    if result.verdict in ("rounding", "diverged") and not result.unexplained and through and min(through) < last:
        return f"from update {min(through) + 1} on"
    return ""


def _ended(result: Result) -> str:
    """Why nothing was decided."""
    outcome = result.candidate_outcome
    if result.verdict == "nondeterministic" and result.first_divergence is not None:
        return f"it does not repeat itself at {phrases.place(result.first_divergence)}"
    if outcome is not None and outcome.status != "completed":
        return _line(outcome.error or outcome.signal or outcome.status)
    return result.reason or result.verdict


def _line(words: object) -> str:
    """The first line of a message."""
    return str(words).strip().partition("\n")[0]
