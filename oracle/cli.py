"""The command line: a thin skin over the library. Every import that takes time is inside the command that needs it.

A command returns its exit code (0 match, 1 diverged, 2 usage, 3 not decidable); None is 0. What it raises and
`USAGE_ERRORS` knows is printed as one message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from oracle import __version__
from oracle.errors import USAGE_ERRORS, near_miss
from oracle.tasks import fixtures, list_tasks

USAGE, UNDECIDED, CTRL_C = 2, 3, 130


class Commands(click.Group):
    """A group that names the nearest command after a typing error."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that `args` begin with, as click resolves it.

        Raises:
            UsageError: there is none; names the ones that exist.
        """
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"no command {name!r}: {near_miss(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="oracle")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def cli() -> None:
    """Find the first wrong step of a wrapped trainer, and say why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. Errors are one message on the standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in ours
    try:
        rest = [word for word in ours if word != "--debug"] + given[len(ours) :]
        return cli.main(rest, prog_name="oracle", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", CTRL_C)
    except BrokenPipeError:
        sys.stdout = None  # the reader left; nothing may be flushed to it on the way out
        return 0
    except Exception as error:
        if debug:
            raise
        if isinstance(error, USAGE_ERRORS):
            return _say(f"error: {error}", USAGE)
        if isinstance(error, OSError):
            place = f" {error.filename}" if error.filename else ""
            reason = error.strerror or error
            return _say(f"error: cannot use{place}: {reason}: choose another place, or free space", USAGE)
        return _say(
            f"error: {type(error).__name__}: {error}\nThis is a fault of the oracle; --debug shows where.", UNDECIDED
        )


def _say(message: str, code: int) -> int:
    click.echo(message, err=True)
    return code


# oracle list


def _listings() -> list[str]:
    zoo = (fixtures() or Path("none")) / "zoo"
    return ["trainers", "tasks", "knobs", *(["specimens"] if zoo.is_dir() else [])]


as_json = click.option(
    "--json", "file", metavar="[FILE]", is_flag=False, flag_value="-", help="Write JSON instead, to FILE or as output."
)


@cli.command("list")
@click.argument("what", type=click.Choice(_listings()))
@as_json
def list_(what: str, file: str | None) -> None:
    """Show trainers with their versions, tasks, or knobs."""
    rows = {"trainers": _trainers, "tasks": _tasks, "knobs": _knobs, "specimens": _specimens}[what]()
    if file is not None:
        _write_json(file, {what: rows})
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


def _write_json(file: str, content: dict[str, Any]) -> None:
    from oracle.result import write_text

    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if file == "-":
        click.echo(text, nl=False)
    else:
        write_text(file, text)


# oracle doctor


@cli.command()
@as_json
def doctor(file: str | None) -> int:
    """Say whether this machine can decide exactly.

    Two runs of one training in fresh processes must be equal bit for bit. Exit code 0: it can. 3: it cannot; the line
    marked `no` says why.
    """
    from dataclasses import asdict

    from oracle.doctor import examine

    checks = examine()
    able = all(check.ok is not False for check in checks)
    if file is not None:
        _write_json(file, {"able": able, "checks": [asdict(check) for check in checks]})
        return 0 if able else UNDECIDED
    marks = {True: "ok", False: "no", None: ""}
    for line in _table([[marks[check.ok], check.name, check.found] for check in checks]):
        click.echo(line)
    for check in checks:
        if check.ok is False:
            click.echo(f"{check.name}: {check.advice}")
    click.echo("This machine can decide exactly." if able else "This machine cannot decide exactly.")
    return 0 if able else UNDECIDED
