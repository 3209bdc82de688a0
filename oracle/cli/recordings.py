"""`oracle record`, `init` and `upgrade`: what needs no task of ours."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import click

from oracle.cli.frame import UNDECIDED, cli, say
from oracle.cli.shared import as_json, asked_recipe, check_writable, write_json


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="TASK | -- COMMAND")
@click.option("--trainer", metavar="T", help="file.py:Class, or a name from `oracle list trainers`; with a TASK.")
@click.option("--reference", required=True, metavar="REQ", help="The version to start from: transformers==4.54.0.")
@click.option("--candidate", "candidates", multiple=True, required=True, metavar="REQ", help="The next; repeatable.")
@click.option("--with", "requirements", multiple=True, metavar="REQ", help="What all of them run with.")
@click.option("--bisect", is_flag=True, help="Run no more of them than are needed to find where something changes.")
@click.option("--recipe", "recipe_file", metavar="FILE", help="A recipe in TOML; by default the task's own.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a value of the recipe.")
@click.option("--policy", default="noise", metavar="P", help="What passes: noise or exact.  [default: noise]")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds a run may take.")
@click.option("--threads", default=1, type=click.IntRange(min=1), metavar="N", help="Threads of torch.  [default: 1]")
@click.option("--keep", metavar="DIR", help="Keep a COMMAND's recordings in a new folder.")
@as_json
def upgrade(
    words: tuple[str, ...], trainer: str | None, reference: str, candidates: tuple[str, ...],
    requirements: tuple[str, ...], bisect: bool, recipe_file: str | None, sets: tuple[str, ...], policy: str,
    timeout: float | None, threads: int, keep: str | None, file: str | None,
) -> int:  # fmt: skip
    """Run a TASK, or a COMMAND after --, with one version after another, and say what changes.

    A requirement may be several, separated by commas: 'transformers==4.54.0,accelerate==1.0.1'.

    Exit code 0: nothing changes, or what the policy passes. 1: training changes. 3: a version cannot be run, or not
    compared.
    """
    from diffs.verdict import Policy, PolicyError
    from oracle import upgrade as runner
    from oracle.progress import shown
    from oracle.report.upgrades import upgrade_lines

    try:
        passing = Policy.parse(policy)
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    if passing.name == "ulp":
        raise click.UsageError(f"--policy {policy}: versions are told apart by what they decide: noise or exact")
    if file is not None:
        check_writable(file)
    versions = [tuple(part.strip() for part in one.split(",")) for one in (reference, *candidates)]
    rerun = shlex.join(["oracle", *click.get_current_context().obj])
    if trainer is None:
        if len(words) == 1 and not Path(words[0]).exists() and shutil.which(words[0]) is None:
            raise click.UsageError(f"{words[0]}: a TASK goes with --trainer, and a COMMAND after --")
        if keep and Path(keep).exists() and any(Path(keep).iterdir()):
            raise click.UsageError(f"--keep {keep} is there already: name a new folder, or empty it")
        if bisect or recipe_file or sets:
            raise click.UsageError("--bisect, --recipe and --set go with a TASK and --trainer, not with a COMMAND")
        with shown() as progress:
            content, printed = runner.of_script(words, versions, requirements, keep, passing, progress)
    else:
        if len(words) != 1:
            raise click.UsageError(f"one TASK goes with --trainer, found {' '.join(words)}")
        recipe = asked_recipe(words[0], recipe_file, sets, {})
        from oracle.check import Request

        request = Request(
            task=words[0], trainer=trainer, recipe=recipe, requirements=requirements, policy=passing, timeout=timeout,
            threads=threads, rerun=rerun,
        )  # fmt: skip
        with shown() as progress:
            found = runner.upgrade(request, versions, bisect=bisect, progress=progress)
        content, printed = found.to_dict(), list(upgrade_lines(found))
    if file is not None:
        write_json(file, content)
    if file != "-":
        for line in printed:
            click.echo(line)
    if content["verdict"] in ("nondeterministic", "not_comparable"):
        return UNDECIDED
    return 0 if content["passed"] else 1


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-o", "--output", required=True, metavar="DIR", help="Where the recording goes: a new folder.")
@click.option("--level", default="digest", type=click.Choice(["digest", "full"]), help="Keep tensors in full, too.")
@click.option("--at", metavar="A:B", help="Updates A to B alone.")
@click.option("--every", default=1, type=click.IntRange(min=1), metavar="N", help="Each N-th update alone.")
@click.option("--kinds", metavar="K,K", help="These kinds alone: parameter,consume.gradient.")
@click.option("--limit", metavar="SIZE", help="Stop recording before a process's trace is larger: 2GB.")
@click.option("--with", "requirements", multiple=True, metavar="REQ", help="Run it with this: transformers==4.54.0.")
@click.option("--python", metavar="PATH", help="Look for its programs beside this interpreter first.")
@as_json
def record(
    command: tuple[str, ...],
    output: str,
    level: str,
    at: str | None,
    every: int,
    kinds: str | None,
    limit: str | None,
    requirements: tuple[str, ...],
    python: str | None,
    file: str | None,
) -> int:
    """Run COMMAND as it is, after --, and record what its processes train.

    Exit code 0: it ended well. 3: it failed, or nothing could be recorded; what was recorded until then stays.
    """
    from oracle import environment, recording
    from oracle.progress import shown
    from oracle.recorder.session import Options
    from oracle.report.recordings import record_lines

    if file is not None:
        check_writable(file)
    first, last = recording.updates(at)
    options = Options(
        folder=output,
        level=level,
        first=first,
        last=last,
        every=every,
        kinds=recording.kinds(kinds),
        limit_bytes=recording.size(limit),
        command=command,
    )
    place = None
    if requirements or python:
        with shown() as progress:
            place = environment.prepare(requirements, python=python, say=progress)
    try:
        found = recording.record(command, options, place)
    except recording.NothingRecorded as error:
        return say(str(error), UNDECIDED)
    if file is not None:
        write_json(file, found.to_dict())
    for line in record_lines(found):
        click.echo(line, err=True)
    return UNDECIDED if found.exit_code else 0


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="RECORDING | SCRIPT [ARGS]...")
@click.option("-o", "--output", default=".", metavar="DIR", help="Where the two files go.  [default: here]")
def init(words: tuple[str, ...], output: str) -> int:
    """Propose a recipe and a task file for a SCRIPT, from what a recording of it saw.

    A SCRIPT is run to its end for it. The recipe is whole; the task file's lines that no recording holds, such as how
    the model is made, are listed with what each must give. Exit code 3: nothing could be recorded.
    """
    from oracle import proposal, recording
    from oracle.recorder.session import Options

    if not output:
        raise click.UsageError("-o '': it has no name: name a folder")
    proposal.check_free(Path(output))  # before a script runs for an hour
    given = Path(words[0])
    if len(words) == 1 and given.is_dir():
        found = proposal.propose(given)
    else:
        import tempfile

        command = (sys.executable, *words) if given.suffix == ".py" else words
        with tempfile.TemporaryDirectory(prefix="oracle-") as aside:
            place = Path(aside) / "recording"
            try:
                recording.record(command, Options(folder=str(place), command=command), aside=True)
            except recording.NothingRecorded as error:
                return say(str(error), UNDECIDED)
            found = replace(proposal.propose(place), source=shlex.join(words))
    task, recipe = proposal.write(found, Path(output))
    click.echo(f"{recipe}: what was seen")
    for unknown in found.unknown:
        click.echo(f"  not known: {unknown}")
    click.echo(f"{task}: to fill in")
    for line, what in proposal.to_fill_in(task):
        click.echo(f"  line {line}: {what}")
    click.echo("then:")
    click.echo(f"  oracle check {shlex.quote(str(task))} --recipe {shlex.quote(str(recipe))} --trainer T")
    return 0
