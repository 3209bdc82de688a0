"""What it takes to switch a feature on: the arguments that are passed for it, and the lines that depend on it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oracle import trainers
from oracle.adapters.levers import TABLES
from oracle.evaluate.session import Session
from oracle.processes import pinned
from oracle.profile import signatures

FIELDS = {
    "validation": "evaluate", "logging": "log", "resume": "resume_from", "mixed_precision": "precision",
    "accumulation": "accumulation",
}  # fmt: skip
"""The field of a recipe, or of a job, that a feature depends on."""


def passed(session: Session, recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """For each feature, the arguments that are passed for it and not without it, and lines of the trainer's file."""
    found: dict[str, Any] = {}
    told: dict[str, Mapping[str, str]] = {}
    if session.trainer in TABLES:
        finite = [{**recipe, "clip": {"max_norm": float("inf")}} for recipe in recipes.values()]
        variables = pinned(1, session.place.layer)
        read = signatures.read(session.trainer, finite, session.place.python, variables)
        told = dict(zip(recipes, read.passed, strict=False))
    lines = counted(source(session.trainer))
    for feature in recipes:
        if feature:
            usual, now = told.get("", {}), told.get(feature, {})
            settings = now if feature == "training" else {k: v for k, v in now.items() if usual.get(k) != v}
            found[feature] = {
                "settings": [f"{name}={value}" for name, value in settings.items()],
                "lines": lines.get(FIELDS.get(feature, "")),
            }
    return {"features": found}


def source(trainer: str) -> Path:
    """The file that a trainer, or its adapter, is written in."""
    if trainers.is_file(trainer):
        return Path(trainers.absolute(trainer).rpartition(":")[0])
    return trainers.ADAPTERS / f"{trainer}.py"


def counted(file: Path) -> dict[str, int]:
    """For each attribute that statements of a file read, how many lines they have; of an `if`, with its body."""
    found: dict[str, set[int]] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.stmt) or isinstance(node, ast.ClassDef | ast.FunctionDef | ast.For | ast.While):
            continue
        read = node.test if isinstance(node, ast.If) else node
        names = {part.attr for part in ast.walk(read) if isinstance(part, ast.Attribute)}
        for name in names:
            found.setdefault(name, set()).update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return {name: len(lines) for name, lines in found.items()}
