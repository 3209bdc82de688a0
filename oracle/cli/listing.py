"""`oracle list` and `oracle doctor`: what there is, and what this machine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oracle.cli.frame import UNDECIDED, cli
from oracle.cli.shared import as_json, check_writable, write_json
from oracle.tasks import fixtures, list_tasks


def _listings() -> list[str]:
    zoo = (fixtures() or Path("none")) / "zoo"
    return ["trainers", "tasks", "knobs", *(["specimens"] if zoo.is_dir() else [])]


@cli.command("list")
@click.argument("what", type=click.Choice(_listings()))
@as_json
def list_(what: str, file: str | None) -> None:
    """Show trainers with their versions, tasks, or knobs."""
    rows = {"trainers": _trainers, "tasks": _tasks, "knobs": _knobs, "specimens": _specimens}[what]()
    if file is not None:
        write_json(file, {what: rows})
        return
    for line in _table([_shown(row) for row in rows]):
        click.echo(line)


def _trainers() -> list[dict[str, Any]]:
    from oracle.trainers import list_trainers

    return [{"name": one.name, "package": one.package, "version": one.version} for one in list_trainers()]


def _tasks() -> list[dict[str, Any]]:
    return [{"name": name, "trains": _first_line(file), "file": str(file)} for name, file in list_tasks().items()]


def _knobs() -> list[dict[str, Any]]:
    from reference_loop.semantics import KNOBS

    return [
        {
            "name": knob.name,
            "effect": knob.effect,
            "values": [
                {"value": value, "motive": knob.motives[value], "citation": knob.citations[value]}
                for value in knob.values
            ],
        }
        for knob in KNOBS.values()
    ]


def _specimens() -> list[dict[str, Any]]:
    files = sorted(((fixtures() or Path()) / "zoo").glob("*.py"))
    return [{"name": file.stem, "fault": _first_line(file)} for file in files if not file.stem.startswith("_")]


def _first_line(file: Path) -> str:
    """The first line of a file's docstring, read without running the file."""
    import ast

    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _shown(row: dict[str, Any]) -> list[str]:
    """One entry as the cells of a line of text; a file's path is left to JSON."""
    cells = []
    for key, value in row.items():
        if key == "values":
            cells.append(", ".join(one["value"] for one in value) or "(none)")
        elif key != "file":
            cells.append("not installed" if value is None else str(value))
    return cells


def _table(rows: list[list[str]]) -> list[str]:
    """Cells as lines, in columns as wide as their widest cell; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


@cli.command()
@as_json
def doctor(file: str | None) -> int:
    """Say whether this machine can decide exactly.

    Two runs of one training in fresh processes must be equal bit for bit. Exit code 0: it can. 3: it cannot; the line
    marked `no` says why.
    """
    from dataclasses import asdict

    from oracle.doctor import examine

    if file is not None:
        check_writable(file)
    checks = examine()
    able = all(check.ok is not False for check in checks)
    if file is not None:
        write_json(file, {"able": able, "checks": [asdict(check) for check in checks]})
        return 0 if able else UNDECIDED
    marks = {True: "ok", False: "no", None: ""}
    for line in _table([[marks[check.ok], check.name, check.found] for check in checks]):
        click.echo(line)
    for check in checks:
        if check.ok is False:
            click.echo(f"{check.name}: {check.advice}")
    click.echo("This machine can decide exactly." if able else "This machine cannot decide exactly.")
    return 0 if able else UNDECIDED
