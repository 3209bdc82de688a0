"""What a maintainer needs to believe a cause: the smallest recipe that shows it, numbers, and a script that was run."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from diffs.first import differences
from oracle import environment, guard, processes, tasks, trainers
from oracle.check import Case, Request, opened
from oracle.errors import OracleError
from oracle.explain.explanation import Explanation
from oracle.explain.standing import rules
from oracle.remedy import restored
from oracle.replays import Replay
from oracle.report import script as scripts
from oracle.report.loop import NoScript, Side
from oracle.report.sentences import sentence
from oracle.result import Cause, FirstDivergence, Reproduction, Result
from oracle.smallest import MOST_RERUNS, smallest
from reference_loop.recipe import to_dict

SHOWN = 6
LIMIT = 300.0  # seconds that a script may take

BLOCKED = """
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("oracle", "reference_loop", "diffs"):
            raise ModuleNotFoundError(f"the script may not import {name}")
sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script as if nothing of ours were installed."""


def reproduce(
    request: Request, result: Result, say: Callable[[str], None] = lambda words: None, most: int = MOST_RERUNS
) -> Reproduction | None:
    """The reproduction of the first confirmed semantic cause of a result; None if it has none.

    request: what gave the result. most: how many checks may be spent on a smaller recipe; 0 keeps the recipe.
    """
    confirmed = (cause for cause in result.causes if (cause.status, cause.effect) == ("confirmed", "semantic"))
    cause = next(confirmed, None)
    if result.verdict != "diverged" or cause is None:
        return None
    try:
        found = smallest(request, result, cause, most, say)
        shown = _shown(replace(request, recipe=found.recipe), cause, found.reruns, say)
        if shown is None and found.recipe != request.recipe:
            shown = _shown(request, cause, 0, say)
    except OracleError as error:  # the result stands without it
        return _unshown(request, cause, str(error))
    return shown or _unshown(request, cause, "another check does not show the cause")


def _unshown(request: Request, cause: Cause, reason: str) -> Reproduction:
    return Reproduction(cause=cause.knob, recipe=to_dict(request.recipe), reruns=0, reason=reason)


def _shown(request: Request, cause: Cause, reruns: int, say: Callable[[str], None]) -> Reproduction | None:
    """What a check in fresh processes shows of a cause; None if it is not confirmed there."""
    say("checking the smallest recipe in fresh processes")
    with opened(replace(request, folder=None, launch=None, seeds=0), say) as case:
        again = case.judge()
        shown = next((one for one in again.causes if one.knob == cause.knob and one.status == "confirmed"), None)
        if shown is None or case.found is None:
            return None
        besides = tuple(sentence(one) for one in again.causes if one is not shown)
        text, output, reason = _script(case, case.found, shown, besides, say)
        return Reproduction(
            cause=cause.knob,
            recipe=to_dict(request.recipe),
            reruns=reruns,
            numbers=tuple(_numbers(case)),
            script=text,
            output=output,
            reason=reason,
        )


def _numbers(case: Case) -> Iterator[FirstDivergence]:
    """The worst element of each value that differs at the first place that does."""
    findings, candidate = case.findings, case.findings.candidate
    assert candidate.trace is not None
    reference = findings.reference.trace
    found = differences(reference, candidate.trace, rules(reference, candidate.trace), decisive_only=True)
    (first,) = itertools.islice(found, 1)
    place = first.address.update, first.address.moment
    there = itertools.takewhile(lambda one: (one.address.update, one.address.moment) == place, found)
    for difference in itertools.islice(itertools.chain([first], there), SHOWN):
        yield findings.elements(difference)


def _script(
    case: Case, found: Explanation, cause: Cause, besides: tuple[str, ...], say: Callable[[str], None]
) -> tuple[str | None, str | None, str | None]:
    """The script and what it printed, or the reason that there is none."""
    try:
        text = scripts.script(_facts(case, found, cause, besides))
    except NoScript as reason:
        return None, None, str(reason)
    say("running the script")
    code, output = _run(text, case.request)
    if code != 0:
        last = output.strip().splitlines()[-1:] or ["no word"]
        return None, None, f"the script that was written does not show it: {last[0]}"
    return text, output, None


def _facts(case: Case, found: Explanation, cause: Cause, besides: tuple[str, ...] = ()) -> scripts.Case:
    findings, original = case.findings, case.findings.reading
    if case.request.device != "cpu":
        raise NoScript(f"scripts are written for the CPU, and this ran on {case.request.device}")
    if case.request.arguments:
        raise NoScript("scripts construct a trainer as it is by default, and this one was given arguments")
    if found.gaps:
        raise NoScript("something else differs that no knob explains, so that no plain loop is equal to the trainer")
    adopted = next(one for one in found.causes if (one.knob, one.candidate) == (cause.knob, cause.candidate))
    without = restored(found.reading, adopted, original)
    if len(found.causes) == 1:
        replay: Replay = findings.reference
    else:
        replay = findings.replays.one(without)
    asked = Side.of(original, findings.reference.trace)
    versions = (findings.candidate.ending.outcome or {}).get("versions", {})
    name = Path(case.request.trainer).name if trainers.is_file(case.request.trainer) else case.request.trainer
    version = versions.get(name, "")
    return scripts.Case(
        task=tasks.find_task(case.request.task),
        trainer=trainers.absolute(case.request.trainer),
        versions=versions,
        title=f"{sentence(cause).replace('the candidate', ' '.join(filter(None, (name, version))), 1)}.",
        besides=besides,
        plain=Side.of(without, replay.trace),
        marked=Side.of(found.reading, found.replay.trace),
        asked=asked,
        samples=findings.reference.samples,
        threads=case.request.threads,
    )


def _run(text: str, request: Request) -> tuple[int, str]:
    """Run a script in the candidate's environment, where nothing of ours can be imported: exit code and output."""
    place = environment.prepare(request.requirements, python=request.python, allow_torch=request.allow_torch)
    limit = request.timeout or LIMIT
    with guard.folder() as folder:
        path = folder / "script.py"
        path.write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [place.python, "-c", BLOCKED, os.fspath(path)],
            env=processes.pinned(request.threads, place.layer),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        guard.watch(process.pid)
        try:
            said, complaint = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return 1, f"no end after {limit:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            guard.release(process.pid)
    return process.returncode, said if process.returncode == 0 else said + complaint
