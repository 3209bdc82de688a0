"""One training by the candidate and by the reference, as `oracle check` has it, with what a reader needs of both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffs.captured import read_tensors
from diffs.trace import Trace
from oracle.candidate import CandidateUsage
from oracle.check import Case, opened
from oracle.evaluate.scenario import numbers
from oracle.evaluate.session import Session
from oracle.impact import ImpactUnknown, ends
from oracle.replays import ReplayFailed
from reference_loop.recipe import RecipeError, from_dict

SMALL = 64  # elements of a model whose tensors are kept
FIRST = 4  # updates of which tensors are kept
WORDS = 4000  # characters of what a run printed


def run(session: Session, name: str, task: str, asked: dict[str, Any], explain: bool = True) -> dict[str, Any]:
    """What came of a task and a recipe. name: of the traces; explain: look for causes; without, `result` is null."""
    recipe = from_dict(numbers(asked))
    facts = {"task": task, "recipe": asked}
    try:
        server = session.server if recipe.parallel.ranks == 1 else None  # several ranks are processes of their own
        with opened(session.request(task, recipe), lambda words: None, server) as case:
            result = case.judge().to_dict() if explain else None
            keep(case.findings.reference.folder, session.traces / name / "reference")
            keep(case.findings.runs.folder / "first", session.traces / name / "candidate")
            return {**facts, "refused": None, "result": result, **_seen(case)}
    except (CandidateUsage, ReplayFailed, RecipeError) as refused:
        return {**facts, "refused": str(refused)}


def _seen(case: Case) -> dict[str, Any]:
    found = case.findings
    trace = found.candidate.trace
    folder = found.runs.folder / "first"
    texts = (folder / name for name in ("stdout.txt", "stderr.txt"))
    try:
        measured = ends(found) if trace is not None else None
    except ImpactUnknown:
        measured = None
    return {
        "repeats": None if found.candidate.itself is None else found.candidate.itself.identical,
        "ended": found.candidate.ended,
        "ends": measured,
        "reference": recorded(found.reference.trace, found.reference.folder),
        "candidate": None if trace is None else recorded(trace, found.candidate.full),
        "versions": (found.candidate.ending.outcome or {}).get("versions", {}),
        "log": "\n".join(
            text.read_text(encoding="utf-8", errors="replace")[-WORDS:] for text in texts if text.is_file()
        ),
    }


def recorded(trace: Trace, full: Path | None) -> dict[str, Any]:
    """What a trace says, as plain data; tensors only where they are few and small."""
    return {
        "updates": trace.last_update + 1,
        "ids": [[*row.address[:2], row.content] for row in trace.rows_at(("batch", "batch_ids"))],
        "losses": [[*row.address[:2], row.content] for row in trace.rows_at(("forward", "loss"))],
        "rates": _rates(trace),
        "logged": list(_metrics(trace, "log")),
        "evaluated": list(_metrics(trace, "evaluate")),
        "scales": [[row.address.update, row.content] for row in trace.rows_at(("update", "scaler"))
                   if row.address.name == "scale"],
        "moved": _moved(trace),
        "tensors": list(_tensors(full)) if full is not None else [],
    }  # fmt: skip


def _rates(trace: Trace) -> list[list[Any]]:
    found: dict[int, set[float]] = {}
    for row in trace.rows_at(("consume", "learning_rate")):
        found.setdefault(row.address.update, set()).add(row.content)
    return [[update, sorted(rates)] for update, rates in found.items()]


def _metrics(trace: Trace, moment: str) -> Iterator[list[Any]]:
    for row in trace.rows_at((moment, "metric")):
        yield [row.address.update, row.address.name.partition("#")[0], row.content]


def _moved(trace: Trace) -> bool:
    start = {row.address.name: row.digest for row in trace.rows_at(("start", "parameter"))}
    end = {row.address.name: row.digest for row in trace.rows_at(("update", "parameter"))}
    return any(end.get(name, digest) != digest for name, digest in start.items())


def _tensors(folder: Path) -> Iterator[list[Any]]:
    """[update, kind, name, elements] of parameters at the start and after updates, and of what updates took.

    Nothing of a model that has more elements than can be calculated by hand.
    """
    places = (("start", "parameter"), ("consume", "gradient"), ("update", "parameter"))
    tensors = read_tensors(folder)
    chosen = [at for at in tensors if (at.moment, at.kind) in places and at.update < FIRST]
    if sum(tensors[at].numel() for at in chosen if at.moment == "start") > SMALL:
        return
    for address in chosen:
        elements = tensors[address].double().flatten().tolist()
        yield [address.update, address.kind, address.name, elements]


def keep(folder: Path, to: Path) -> None:
    """Keep a trace's database and manifest."""
    to.mkdir(parents=True, exist_ok=True)
    for name in ("trace.db", "manifest.json"):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, to / name)
