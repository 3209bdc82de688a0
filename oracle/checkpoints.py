"""Compares two checkpoints for `oracle diff`, and says what was found as JSON. `docs/checkpoints.md` describes it."""

from __future__ import annotations

import math
import time
from typing import Any

from diffs.checkpoints.checkpoint import Checkpoint
from diffs.checkpoints.comparison import PartComparison, TensorOutcome
from diffs.checkpoints.comparison import compare as compare_parts
from diffs.checkpoints.formats import open_checkpoint
from diffs.tensor import Element
from diffs.verdict import UNREACHABLE, passes
from oracle.diff import Found, Request
from oracle.report.checkpoints import comparison_lines

SCHEMA = 1


def compare(request: Request) -> Found:
    """Compare two checkpoints of any format.

    Raises:
        NotComparable: one cannot be read, with the place where it breaks.
    """
    started = time.perf_counter()
    reference = open_checkpoint(request.reference, request.trust)
    candidate = open_checkpoint(request.candidate, request.trust)
    opened = time.perf_counter()
    comparison = compare_parts(reference, candidate)
    seconds = {"open": opened - started, "compare": time.perf_counter() - opened}
    passed = passes(comparison.verdict, request.policy, comparison.worst_ulp)
    content = {
        "schema": SCHEMA,
        "command": "diff",
        "kind": "checkpoint",
        "verdict": comparison.verdict,
        "policy": str(request.policy),
        "passed": passed,
        "reason": comparison.reason,
        "reference": side(reference),
        "candidate": side(candidate),
        "compared": {"tensors": comparison.tensors, "bytes": comparison.nbytes},
        "worst_ulp": _ulp(comparison.worst_ulp),
        "parts": [_part(part) for part in comparison.parts],
        "seconds": seconds,
        "rerun": request.rerun,
    }
    lines = comparison_lines(comparison, seconds, request)
    return Found(verdict=comparison.verdict, passed=passed, content=content, lines=lines)


def side(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint as JSON: where it is, its format and its files."""
    return {
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "files": [{"name": one.name, "kind": one.kind, "foreign": list(one.foreign)} for one in checkpoint.files],
        "unread": list(checkpoint.unread),
        "notes": list(checkpoint.notes),
    }


def _part(part: PartComparison) -> dict[str, Any]:
    rule = part.rule
    return {
        "part": part.part,
        "sides": part.sides,
        "compared": part.compared,
        "same": part.same,
        "tensors": part.tensors,
        "bytes": part.nbytes,
        "identical": part.identical,
        "outcomes": [_outcome(outcome) for outcome in part.outcomes],
        "state": [
            {
                "path": list(map(str, one.path)),
                "kind": one.kind,
                "reference": plain(one.reference),
                "candidate": plain(one.candidate),
            }
            for one in part.state
        ],
        "ignored": part.ignored,
        "rule": None if rule is None else {"off": rule.off, "on": rule.on, "names": rule.names},
        "by_content": part.by_content,
    }


def _outcome(outcome: TensorOutcome) -> dict[str, Any]:
    found = outcome.difference
    return {
        "name": outcome.name,
        "outcome": outcome.outcome,
        "other": outcome.other,
        "reference": _form(outcome.reference),
        "candidate": _form(outcome.candidate),
        "elements": None
        if found is None
        else {
            "differing": found.differing,
            "total": found.total,
            "share": found.differing / found.total,
            "worst": _element(found.worst),
            "first": _element(found.first),
            "max_abs": plain(found.max_abs),
            "relative_l2": plain(found.relative_l2),
        },
    }


def _form(form: tuple[str, tuple[int, ...]] | None) -> dict[str, Any] | None:
    return None if form is None else {"dtype": form[0], "shape": list(form[1])}


def _element(element: Element | None) -> dict[str, Any] | None:
    if element is None:
        return None
    return {
        "index": list(element.index),
        "reference": plain(element.reference),
        "candidate": plain(element.candidate),
        "ulp": _ulp(element.ulp),
    }


def _ulp(count: int | None) -> int | None:
    """A distance; None where no number of values lies between."""
    return None if count == UNREACHABLE else count


def plain(value: Any) -> Any:
    """A value as JSON has it: NaN and the infinities, which it lacks, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
