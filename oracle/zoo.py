"""Runs the zoo: trainers with one planted fault each, and healthy ones, and counts what the oracle says of them."""

from __future__ import annotations

import ast
import itertools
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from diffs.verdict import Policy
from oracle import cluster, tasks, trainers
from oracle.check import Request, check
from oracle.errors import OracleError
from oracle.replays import Server
from oracle.result import Result
from oracle.resume import cuts
from oracle.resume.command import resume
from reference_loop.recipe import Precision, Recipe, ScalerOptions, load

FRESH_SHARE = 0.02  # of the specimens, run again in fresh processes
LIMIT = 120.0  # seconds that a run of a specimen may take

Expected = tuple[str, Any, Any]
"""A cause: knob, reference's value, candidate's value."""


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """A trainer of the zoo, as its file describes it.

    fault: in plain words. shows: (update, moment) of the first decisive difference. causes: in the order in which they
    show; none where no knob explains the fault. also: first causes that no recipe could tell from the expected one.
    expect: the verdict that a healthy trainer may have at most; None for one with a fault.
    cut: where it is interrupted and resumed, as `oracle resume --cut` takes it; "" for one that is checked.
    """

    name: str
    file: Path
    fault: str
    task: str
    recipe: Recipe
    shows: tuple[int, str] | None = None
    causes: tuple[Expected, ...] = ()
    also: tuple[Expected, ...] = ()
    report: str = ""
    base: str = ""
    expect: str | None = None
    cut: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the oracle made of a specimen. Fields that cannot be judged for want of a divergence are False.

    healthy: whether nothing was planted. alarm: whether such a one was called worse than it may be.
    wrong_confirmed: confirmed causes that were not planted. unexplained: differences that were left without a cause.
    """

    name: str
    healthy: bool
    alarm: bool
    verdict: str
    found: bool
    update_right: bool
    moment_right: bool
    cause_right: bool
    all_causes: bool
    confirmed: bool
    wrong_confirmed: tuple[str, ...]
    unexplained: int
    said: tuple[str, ...]
    first: tuple[int, str] | None
    replays: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether the oracle was right: a fault is found in its place with its cause, a healthy trainer passes."""
        if self.healthy:
            return not self.alarm
        return self.found and self.update_right and self.moment_right and self.cause_right and not self.wrong_confirmed


def specimens(folder: Path) -> list[Specimen]:
    """The specimens in a folder, by name; their files are read, not run."""
    return [_read(path) for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")]


def _read(path: Path) -> Specimen:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            try:
                constants[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(constants.get("RECIPE", ""))
        file.flush()
        recipe = load(file.name)
    shows = constants.get("SHOWS")
    return Specimen(
        name=path.stem,
        file=path,
        fault=(ast.get_docstring(tree) or "").partition("\n")[0],
        task=_task(path, constants.get("TASK", "regression")),
        recipe=recipe,
        shows=(shows[0], shows[1]) if shows else None,
        causes=tuple(tuple(cause) for cause in constants.get("CAUSES", ())),
        also=tuple(tuple(cause) for cause in constants.get("ALSO", ())),
        report=constants.get("REPORT", ""),
        base=constants.get("BASE", ""),
        expect=constants.get("EXPECT"),
        cut=constants.get("CUT", ""),
    )


def _task(file: Path, named: str) -> str:
    """A task by its name, or a file beside the specimen's."""
    return str((file.parent / named).resolve()) if named.endswith(".py") else named


def judge(specimen: Specimen, result: Result, seconds: float) -> Outcome:
    """Hold a result against what was planted."""
    first = result.first_divergence
    planted = [(knob, candidate) for knob, _, candidate in specimen.causes]
    accepted = [(knob, candidate) for knob, _, candidate in (*specimen.causes, *specimen.also)]
    also = accepted[len(planted) :]
    said = [(cause.knob, cause.candidate) for cause in result.causes if cause.effect == "semantic"]
    styles = [(cause.knob, cause.candidate) for cause in result.causes if cause.effect == "style"]
    right = said[0] in (planted[0], *also) if planted and said else not planted and not said
    wrong = [
        f"{cause.knob} = {cause.candidate}"
        for cause in result.causes
        if cause.status == "confirmed" and (cause.knob, cause.candidate) not in accepted and cause.effect == "semantic"
    ]
    return Outcome(
        name=specimen.name,
        healthy=specimen.expect is not None,
        alarm=specimen.expect is not None and result.verdict not in ("match", specimen.expect),
        verdict=result.verdict,
        found=result.verdict == "diverged",
        update_right=first is not None and specimen.shows is not None and first.update == specimen.shows[0],
        moment_right=first is not None and specimen.shows is not None and first.moment == specimen.shows[1],
        cause_right=right,
        all_causes=all(cause in said or cause in styles for cause in planted) or (right and len(planted) == 1),
        confirmed=bool(planted)
        and all(cause.status == "confirmed" for cause in result.causes if cause.effect == "semantic"),
        wrong_confirmed=tuple(wrong),
        unexplained=len(result.unexplained),
        said=tuple(f"{c.knob} = {c.candidate} ({c.status})" for c in result.causes)
        or tuple(f"unexplained at {u.site.moment} of update {u.site.update}" for u in result.unexplained),
        first=(first.update, first.moment) if first else None,
        replays=result.replays,
        seconds=seconds,
    )


def run(
    chosen: Sequence[Specimen], processes: int | None = None, where: cluster.Where = "local"
) -> Iterator[Outcome]:
    """Check specimens in warm processes, several at a time; outcomes come in order, as they are ready."""
    return cluster.in_order(cluster.spread(_one, chosen, where=where, workers=processes))


def again(chosen: Sequence[Specimen], share: float = FRESH_SHARE) -> Iterator[Outcome]:
    """A sample of the specimens, checked in fresh processes; none of a few."""
    for specimen in random.Random(len(chosen)).sample(list(chosen), round(share * len(chosen))):
        started = time.monotonic()
        yield judge(specimen, tried(specimen), time.monotonic() - started)


def healthy_cases(
    chosen: Sequence[Specimen], names: Iterable[str], seeds: Iterable[int], dtypes: Iterable[str]
) -> list[Specimen]:
    """Healthy trainers on every task, seed and precision."""
    cases = []
    for one, task, seed, dtype in itertools.product(chosen, names, seeds, dtypes):
        options = ScalerOptions(init_scale=2.0**14, growth_interval=2) if dtype == "float16" else None
        recipe = replace(one.recipe, seed=seed, precision=Precision(dtype=dtype), scaler=options)
        cases.append(replace(one, name=f"{one.name}-{task}-{seed}-{dtype}", task=task, recipe=recipe, cut=""))
    return cases


def request(specimen: Specimen) -> Request:
    """The check of a specimen with its own task and recipe."""
    return Request(task=specimen.task, trainer=f"{specimen.file}:Trainer", recipe=specimen.recipe, timeout=LIMIT)


def tried(specimen: Specimen, server: Server | None = None) -> Result:
    """What the oracle says of a specimen: of its check, or of its resume where it is to be interrupted."""
    if not specimen.cut:
        return check(request(specimen), server=server)
    asked = replace(request(specimen), policy=Policy.parse("exact"))
    return resume(asked, [cuts.parse(specimen.cut)], server=server)


def _one(worker: cluster.Worker, specimen: Specimen) -> Outcome:
    started = time.monotonic()
    try:
        result = tried(specimen, worker.server(trainers.OWN_IMPORTS))
    except OracleError as error:
        healthy = specimen.expect is not None
        return Outcome(
            name=specimen.name, healthy=healthy, alarm=healthy, verdict="usage", found=False, update_right=False,
            moment_right=False, cause_right=False, all_causes=False, confirmed=False, wrong_confirmed=(), unexplained=0,
            said=(str(error),), first=None, replays=0, seconds=time.monotonic() - started,
        )  # fmt: skip
    return judge(specimen, result, time.monotonic() - started)


def summary(outcomes: Sequence[Outcome], chosen: Sequence[Specimen], fresh: Sequence[Outcome] = ()) -> dict[str, Any]:
    """The detection table in numbers: shares of the planted faults from 0 to 1, counts where a name says so.

    fresh: outcomes of some of them in fresh processes; `fresh_unlike` counts those that say something else.
    """
    faults = [outcome for outcome in outcomes if not outcome.healthy]
    pairs = {one.name for one in chosen if len(one.causes) > 1}
    named = [outcome for outcome in faults if outcome.name in pairs]
    warm = {outcome.name: replace(outcome, seconds=0.0) for outcome in outcomes}

    def share(field: str) -> float | None:
        return sum(getattr(outcome, field) for outcome in faults) / len(faults) if faults else None

    return {
        "specimens": len(faults),
        **{name: share(name) for name in ("found", "update_right", "moment_right", "cause_right", "confirmed")},
        "pairs": len(named),
        "pairs_with_both": sum(o.all_causes for o in named),
        "wrong_confirmed": sum(len(o.wrong_confirmed) for o in faults),
        "healthy": len(outcomes) - len(faults),
        "false_alarms": sum(o.alarm for o in outcomes),
        "fresh": len(fresh),
        "fresh_unlike": sum(replace(one, seconds=0.0) != warm[one.name] for one in fresh),
        "replays_median": sorted(o.replays for o in faults)[len(faults) // 2] if faults else None,
        "seconds": sum(o.seconds for o in outcomes),
    }


def failed(numbers: dict[str, Any]) -> bool:
    """Whether a table shows a fault that was not found in its place, a false alarm, or a claim that is wrong."""
    shares = [numbers[name] for name in ("found", "update_right", "moment_right") if numbers[name] is not None]
    wrong = ("wrong_confirmed", "false_alarms", "fresh_unlike")
    return min(shares, default=1.0) < 1 or any(numbers[name] for name in wrong)


def plain(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Outcomes as JSON-able data."""
    return [asdict(outcome) for outcome in outcomes]


def folder() -> Path:
    """The zoo's folder. Raises OracleError where this installation has none."""
    found = tasks.fixtures()
    if found is None or not (found / "zoo").is_dir():
        raise OracleError("there is no zoo here: run from the source tree, or install a wheel that carries it")
    return found / "zoo"
