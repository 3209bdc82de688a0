"""`oracle golden`: guards that are kept beside the code."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from oracle.cli.frame import UNDECIDED, USAGE, Commands, cli, say
from oracle.cli.shared import asked_recipe, check_writable, recipe_options, write_reports
from oracle.errors import OracleError


@cli.group(cls=Commands)
def golden() -> None:
    """Guard a trainer by a small committed file, a golden."""


def _golden_options(command: Any) -> Any:
    """The options of every command that trains as a golden says."""
    for option in (
        click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S",
                     help="Seconds a run may take."),
        click.option("--python", metavar="PATH", help="Run it with the interpreter of another environment."),
    ):  # fmt: skip
        command = option(command)
    return command


@golden.command("record")
@recipe_options
@click.option("--trainer", required=True, metavar="T", help="file.py:Class, or a name from `oracle list trainers`.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The golden: a new file, NAME.golden.json.")
@click.option("--reason", default="first recording", metavar="TEXT", help="Why.  [default: first recording]")
@click.option("--with", "requirements", multiple=True, metavar="REQ", help="Run it with this: transformers==4.54.0.")
@click.option("--threads", default=1, type=click.IntRange(min=1), metavar="N", help="Threads of torch.  [default: 1]")
@click.option("--device", default="cpu", metavar="D", help="Where both train.  [default: cpu]")
@_golden_options
def golden_record(
    task: str, trainer: str, file: str | None, sets: tuple[str, ...], updates: int | None, epochs: int | None,
    seed: int | None, output: str, reason: str, requirements: tuple[str, ...], threads: int, device: str,
    python: str | None, timeout: float | None,
) -> int:  # fmt: skip
    """Train TASK by a trainer and by the reference loop, and keep digests of what both gave in a new file.

    Exit code 0: it was written. 3: the trainer failed or does not repeat itself; nothing was written.
    """
    from oracle.progress import shown
    from oracle.tasks import find_task
    from oracle.trainers import find_trainer

    check_writable(output)
    find_task(task)
    find_trainer(trainer)
    short = {"updates": updates, "epochs": epochs, "seed": seed}
    stated = [*sets, *(f"{name}={value}" for name, value in short.items() if value is not None)]
    recipe = asked_recipe(task, file, stated, {})
    from oracle.check import Request
    from oracle.golden import command

    request = Request(
        task=task,
        trainer=trainer,
        recipe=recipe,
        requirements=requirements,
        python=python,
        timeout=timeout,
        threads=threads,
        device=device,
        rerun=shlex.join(["oracle", *click.get_current_context().obj]),
    )
    try:
        with shown() as progress:
            made = command.record(request, Path(output), reason, recipe_file=file, sets=stated, progress=progress)
    except command.NothingRecorded as failed:
        return _nothing_recorded(failed.result)
    click.echo(f"{output}: {made.seen.verdict} against the reference loop; commit it, and check it with")
    click.echo(f"  oracle golden check {shlex.quote(output)}")
    if not output.endswith(command.SUFFIX):
        click.echo(f"Without a name, oracle golden check finds *{command.SUFFIX} alone: this one is to be named.")
    return 0


@golden.command("check")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--policy", default="exact", metavar="P", help="What passes: exact or noise.  [default: exact]")
@click.option("--json", metavar="FILE", help="Write the result as JSON; - for the output.")
@click.option("--junit", metavar="FILE", help="Write it as JUnit XML.")
@click.option("--html", metavar="FILE", help="Write it as a page.")
@click.option("--markdown", metavar="FILE", help="Write it as Markdown.")
@_golden_options
def golden_check(
    paths: tuple[Path, ...], policy: str, python: str | None, timeout: float | None, **files: str | None
) -> int:
    """Train as each golden FILE says, and say whether the code moved or what it runs on, and where.

    Without a FILE: every *.golden.json in this folder and below.

    Exit code 0: match, or rounding where the policy passes it. 1: diverged, or rounding. 2: a FILE is no golden. 3:
    stale, or nothing was decided. Of several: 1 before 3 before 2.
    """
    from diffs.verdict import Policy, PolicyError
    from oracle.progress import shown

    try:
        passing = Policy.parse(policy)
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    wanted = {kind: path for kind, path in files.items() if path is not None}
    for path in wanted.values():
        check_writable(path)
    from oracle.golden import command
    from oracle.golden.file import StaleGolden
    from oracle.report import text

    goldens = list(paths) or command.find(Path())
    if not goldens:
        raise click.UsageError(f"there is no *{command.SUFFIX} here or below: oracle golden record makes one")
    if wanted and len(goldens) > 1:
        raise click.UsageError(f"--{next(iter(wanted))} takes the result of one golden, found {len(goldens)}")
    options = command.Options(policy=passing, python=python, timeout=timeout)
    codes = set()
    for number, place in enumerate(goldens):
        try:
            with shown() as progress:
                result = command.check(place, options, progress)
        except StaleGolden as stale:
            codes.add(say(f"not comparable: {stale}", UNDECIDED))
            continue
        except OracleError as error:
            codes.add(say(f"error: {error}", USAGE))
            continue
        if "-" not in wanted.values():
            click.echo("\n" * bool(number) + text.render(result), nl=False)
        write_reports(result, wanted)
        codes.add(result.exit_code)
    return 1 if 1 in codes else max(codes)


@golden.command("update")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--reason", required=True, metavar="TEXT", help="Why what moved is meant; kept in the file.")
@_golden_options
def golden_update(path: Path, reason: str, python: str | None, timeout: float | None) -> int:
    """Train as a golden FILE says, with its recipe as it is today, and keep what was seen, with the reason.

    Exit code 0: it was renewed, or nothing moved. 3: the trainer failed or does not repeat itself; FILE is as it was.
    """
    from oracle.golden import command
    from oracle.golden.file import StaleGolden
    from oracle.progress import shown

    try:
        with shown() as progress:
            _, moved = command.update(path, reason, command.Options(python=python, timeout=timeout), progress)
    except command.NothingRecorded as failed:
        return _nothing_recorded(failed.result)
    except StaleGolden as stale:
        return say(f"not comparable: {stale}", UNDECIDED)
    click.echo(f"{path}: {moved}")
    return 0


def _nothing_recorded(result: Any) -> int:
    """Say why no golden can be made of a run."""
    from oracle.report import text

    click.echo(text.render(result), nl=False)
    return say("no golden was written: the trainer must train to its end and repeat itself", UNDECIDED)
