"""`oracle golden` on one page: train as a golden says, and record it, hold it against the golden, or renew it."""

from __future__ import annotations

import datetime
import hashlib
import math
import os
import platform
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from diffs.captured import read_tensors
from diffs.verdict import Policy, passes
from oracle import __version__
from oracle.check import Case, Progress, Request, opened
from oracle.errors import OracleError
from oracle.golden.file import DIGEST, Asked, Entry, Golden, Seen, read, relative
from oracle.golden.fingerprint import (
    Fingerprint,
    condensed,
    fingerprint,
    first_losses,
    first_moved,
    first_moved_update,
    floats,
    form,
    given,
)
from oracle.golden.judgement import Judgement, judge
from oracle.golden.sketch import sketch
from oracle.replays import Server
from oracle.report import goldens
from oracle.result import GoldenCheck, Result
from oracle.tasks import find_task, list_tasks
from oracle.trainers import is_file
from reference_loop.recipe import Recipe, to_dict

SUFFIX = ".golden.json"
EXACT = Policy("exact")
_ENDED = ("match", "rounding", "diverged")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How goldens are checked.

    policy: what passes; a golden holds no values, so only `exact` and `noise` can be asked.
    python: the interpreter of another environment. timeout: seconds that a run of the candidate may take.
    """

    policy: Policy = EXACT
    python: str | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.policy.name == "ulp":
            raise OracleError(f"policy {self.policy}: a golden holds digests, which have no distance: exact or noise")


class NothingRecorded(Exception):
    """A run of which no golden can be made, because it does not end well or does not repeat itself.

    result: says so. reference, candidate: what was recorded of both, up to the last complete update of the candidate.
    """

    def __init__(self, result: Result, reference: dict[str, str], candidate: Fingerprint) -> None:
        super().__init__(result.verdict)
        self.result, self.reference, self.candidate = result, reference, candidate


def record(
    request: Request, path: Path, reason: str, *, recipe_file: str | None = None, sets: Sequence[str] = (),
    progress: Progress = lambda words: None, server: Server | None = None,
) -> Golden:  # fmt: skip
    """Train as asked, and write the golden.

    request: what to train; its `rerun` is kept as the command. recipe_file, sets: where its recipe comes from.

    Raises:
        OracleError: there is a file already, or as `oracle.check.check` does.
        NothingRecorded: the candidate does not end well, or does not repeat itself. Nothing is written.
    """
    if path.exists():
        raise OracleError(f"{path} is there already: oracle golden update {path} --reason '...' renews it")
    _check_reason(reason)
    asked = Asked(
        task=request.task if request.task in list_tasks() else relative(request.task, path),
        trainer=relative(request.trainer, path) if is_file(request.trainer) else request.trainer,
        recipe_file=None if recipe_file is None else relative(recipe_file, path),
        sets=tuple(sets),
        recipe=to_dict(request.recipe),
        requirements=request.requirements,
        threads=request.threads,
        device=request.device,
        command=request.rerun,
    )
    seen, _ = _run(request, progress, server)
    golden = Golden(path=path, asked=asked, seen=seen, history=(Entry(date=_today(), reason=reason),))
    golden.write()
    return golden


def check(
    path: Path, options: Options, progress: Progress = lambda words: None, server: Server | None = None
) -> Result:
    """Train as a golden says, by the candidate and by the reference loop, and say what moved.

    Raises:
        StaleGolden: nothing can be held against it any more.
        OracleError: there is no golden, or as `oracle.check.check` does.
    """
    started = time.monotonic()
    golden = read(path)
    recipe = golden.same_recipe()
    words = ["oracle", "golden", "check", str(path)]
    words += [] if options.policy == EXACT else ["--policy", str(options.policy)]
    words += ["--python", options.python] if options.python else []
    try:
        now, result = _run(_request(golden, recipe, options, shlex.join(words)), progress, server)
    except NothingRecorded as failed:
        return _result(golden, failed.result, _unfinished(golden.seen, failed), options)
    judged = judge(golden.seen, now, epsilon=_epsilon(recipe, golden.seen))
    return replace(_result(golden, result, judged, options), seconds={"total": round(time.monotonic() - started, 3)})


def update(
    path: Path, reason: str, options: Options, progress: Progress = lambda words: None, server: Server | None = None
) -> tuple[Golden, str]:
    """Train as a golden says, with its recipe as it is today, and write what was seen; returns it and what moved.

    A golden to which nothing moved, in the same surroundings, stays as it is.

    Raises:
        OracleError, StaleGolden, NothingRecorded: as `check` and `record` do. What stood there still stands.
    """
    _check_reason(reason)
    golden = read(path)
    recipe = golden.recipe()
    now, _ = _run(_request(golden, recipe, options, golden.asked.command), progress, server)
    judged = judge(golden.seen, now, epsilon=_epsilon(recipe, golden.seen))
    plain = to_dict(recipe)
    if judged.moved == "nothing" and not judged.facts and plain == golden.asked.recipe:
        return golden, "nothing moved: left as it is"
    moved = _in_short(judged, same_recipe=plain == golden.asked.recipe)
    entry = Entry(date=_today(), reason=reason, moved=moved)
    asked = replace(golden.asked, recipe=plain)
    golden = replace(golden, asked=asked, seen=now, history=(*golden.history, entry))
    golden.write()
    return golden, moved


def find(folder: Path) -> list[Path]:
    """The goldens under a folder, by their ending; hidden folders are left out."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        found += [Path(place) / name for name in files if name.endswith(SUFFIX)]
    return sorted(Path(os.path.relpath(path)) for path in found)


# One run


def _request(golden: Golden, recipe: Recipe, options: Options, rerun: str) -> Request:
    asked = golden.asked
    return Request(
        task=golden.task,
        trainer=golden.trainer,
        recipe=recipe,
        requirements=asked.requirements,
        python=options.python,
        timeout=options.timeout,
        threads=asked.threads,
        device=asked.device,
        rerun=rerun,
    )


def _run(request: Request, progress: Progress, server: Server | None) -> tuple[Seen, Result]:
    """What a run shows, and how it stands against the reference.

    Raises:
        NothingRecorded: it does not end well, or does not repeat itself.
    """
    request = replace(request, digest=DIGEST)
    with opened(request, progress, server) as case:
        result = case.judge()
        if not case.findings.candidate.ended or result.verdict not in _ENDED:
            raise NothingRecorded(result, *_recorded(case))
        return _seen(case, result), result


def _recorded(case: Case) -> tuple[dict[str, str], Fingerprint]:
    """Of the reference, and of the candidate as far as its record is whole."""
    reference, candidate = case.findings.reference.trace, case.findings.candidate.trace
    partial = {} if candidate is None else fingerprint(candidate, last=candidate.last_update - 1)
    return condensed(fingerprint(reference)), partial


def _seen(case: Case, result: Result) -> Seen:
    reference, candidate = case.findings.reference.trace, case.findings.candidate.trace
    assert candidate is not None
    versions = dict((case.findings.candidate.ending.outcome or {}).get("versions", {}))
    return Seen(
        surroundings={"oracle": __version__, **versions, **_machine(case, candidate.manifest.get("flags", {}))},
        sources=dict(_sources(case.request)),
        verdict=result.verdict,
        causes=[[c.knob, c.reference, c.candidate, c.effect, c.status] for c in result.causes],
        understood=not result.unexplained,
        given=given(reference),
        form=form(reference),
        sketch=_sketch(case),
        losses=first_losses(reference),
        reference=condensed(fingerprint(reference)),
        candidate=fingerprint(candidate),
    )


def _sketch(case: Case) -> list[float]:
    """Of what training is given; empty where it cannot be made, or holds a NaN."""
    reference = case.findings.reference
    values = sketch(floats(reference.trace, read_tensors(reference.folder)))
    return values if all(map(math.isfinite, values)) and any(values) else []


def _machine(case: Case, flags: dict[str, str]) -> dict[str, str]:
    """What computes: the processor, the instructions that torch uses of it, and an accelerator where one is used."""
    found = {"machine": flags.get("machine", ""), "cpu capability": flags.get("cpu_capability", "")}
    found["processor"] = _processor()
    if case.request.device.startswith("cuda") and torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name(case.request.device)
    return found


def _processor() -> str:
    """The processor's name: libraries choose their kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _sources(request: Request) -> Iterator[tuple[str, str]]:
    yield "task", _hash(find_task(request.task))
    if is_file(request.trainer):
        yield "trainer", _hash(Path(request.trainer.rpartition(":")[0]).expanduser())


def _hash(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


# What is said of it


def _result(golden: Golden, result: Result, judged: Judgement, options: Options) -> Result:
    last = golden.history[-1]
    return replace(
        result,
        command="golden",
        verdict=judged.verdict,
        policy=str(options.policy),
        passed=passes(judged.verdict, options.policy),
        reason=judged.reason,
        golden=GoldenCheck(
            file=str(golden.path),
            recorded=last.date,
            reason=last.reason,
            moved=judged.moved,
            at=judged.at,
            reference_at=judged.reference_at,
            facts=judged.facts,
            changes=judged.changes,
        ),
    )


def _unfinished(old: Seen, failed: NothingRecorded) -> Judgement:
    """Of a run without an end, or that does not repeat itself: only what it did before can have moved."""
    result = failed.result
    if result.verdict == "nondeterministic":
        return Judgement(verdict="nondeterministic", moved="unknown")
    before = {update: old.candidate.get(update, {}) for update in failed.candidate}
    at = first_moved(before, failed.candidate)
    if at is not None and first_moved_update(old.reference, failed.reference) is None:
        return Judgement(verdict="diverged", moved="code", at=at)
    return Judgement(verdict="not_comparable", moved="unknown", reason=result.reason)


def _in_short(judged: Judgement, *, same_recipe: bool) -> str:
    """What moved since the entry before, as a golden's history keeps it."""
    said = [] if same_recipe else ["the recipe changed"]
    said += [goldens.surroundings(judged.facts)] if judged.facts else []
    said += [goldens.change(change) for change in judged.changes]
    return "; ".join(said) or f"{judged.verdict}: the {judged.moved} moved"


def _epsilon(recipe: Recipe, seen: Seen) -> float:
    """The distance from 1 to the next number in the coarsest precision that the recipe computes in."""
    names = {recipe.precision.dtype, *(dtype for _, dtype in seen.losses)}
    return max(torch.finfo(getattr(torch, name)).eps for name in names)


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise OracleError("--reason '': a golden says why it is as it is: give a reason")


def _today() -> str:
    return datetime.date.today().isoformat()
