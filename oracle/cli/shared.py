"""What several commands share: their options, and how results reach files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

as_json = click.option(
    "--json", "file", metavar="[FILE]", is_flag=False, flag_value="-", help="Write JSON instead, to FILE or as output."
)


def recipe_options(command: Any) -> Any:
    """The options that say what is trained."""
    for option in (
        click.option("--seed", type=int, metavar="N", help="Short for --set seed=N."),
        click.option("--epochs", type=int, metavar="N", help="Short for --set epochs=N."),
        click.option("--updates", type=int, metavar="N", help="Short for --set updates=N."),
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a value of the recipe: optimizer.lr=0.1."
        ),
        click.option(
            "--recipe", "file", metavar="FILE", help="The recipe, a TOML file; a built-in task has one of its own."
        ),
        click.argument("task"),
    ):
        command = option(command)
    return command


argument_option = click.option(
    "--argument",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="Construct the trainer with it: float16.on_cpu=true.",
)


cluster_option = click.option(
    "--cluster",
    "where",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Work on this machine, or on Ray: the cluster of RAY_ADDRESS, or one that is started here.",
)


def asked_arguments(given: Sequence[str]) -> dict[str, Any]:
    """What a trainer's class is constructed with, from `KEY=VALUE` texts; of one key the last text stands.

    Raises:
        UsageError: a text has no key or no value, or a value that JSON lacks.
    """
    from reference_loop.recipe import stated

    found = {}
    for text in given:
        key, _, value = (part.strip() for part in text.partition("="))
        if not key or not value:
            raise click.UsageError(f"--argument takes KEY=VALUE, such as float16.on_cpu=true, found {text!r}")
        found[key] = stated(value)
        try:
            json.dumps(found[key])
        except TypeError:  # TOML has dates
            raise click.UsageError(f"--argument {key}: JSON has no {found[key]!r}: write it as a text") from None
    return found


def asked_recipe(task: str, file: str | None, sets: Sequence[str], short: dict[str, int | None]) -> Any:
    from oracle.recipes import load_recipe

    stated = [f"{name}={value}" for name, value in short.items() if value is not None]
    return load_recipe(task, file, [*sets, *stated])


def write_json(file: str, content: dict[str, Any]) -> None:
    from oracle.result import encode, write_text

    text = json.dumps(encode(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if file == "-":
        click.echo(text, nl=False)
    else:
        write_text(file, text)


def one_line(message: str) -> str:
    """A message without anything that a hostile file's names could do to a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)


def check_writable(path: str) -> None:
    """Refuse a file that cannot be written, before the work whose result it is to hold."""
    import tempfile

    from oracle.errors import OutputError

    place = Path(path).resolve()
    if path == "-" or (place.exists() and not place.is_file() and not place.is_dir()):  # the output, a pipe, a device
        return
    folder = place.parent
    try:
        if not path or place.is_dir():
            raise OSError(0, "it is a folder" if path else "it has no name")
        if not folder.is_dir():
            raise OSError(0, f"{folder} is no folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror if error.errno == 0 else f"{folder}: {error.strerror}"
        raise OutputError(f"cannot write {path!r}: {reason}: name a file in a folder that can be written") from error


def write_reports(result: Any, files: dict[str, str]) -> None:
    """Write the result into the files that were asked for, by kind; - is the output. On GitHub, announce it."""
    from importlib import import_module

    from oracle.report import github
    from oracle.result import write_text

    github.announce(result)

    for kind, path in files.items():
        rendered = result.to_json() if kind == "json" else import_module(f"oracle.report.{kind}").render(result)
        if path == "-":
            click.echo(rendered, nl=False)
        else:
            write_text(path, rendered)
