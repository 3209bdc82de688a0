"""The command line: a thin skin over the library. Every import that takes time is inside the command that needs it.

A command returns its exit code (0 match, 1 diverged, 2 usage, 3 not decidable); None is 0. What it raises and
`USAGE_ERRORS` knows is printed as one message.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from oracle import __version__
from oracle.errors import USAGE_ERRORS, OracleError, near_miss
from oracle.output import Output
from oracle.tasks import fixtures, list_tasks

USAGE, UNDECIDED, CTRL_C, TERMINATED = 2, 3, 130, 143


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
        if arguments is None:  # a process of our own: it leaves nothing behind, as after Ctrl-C
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
            sys.stdout = Output(sys.stdout) if sys.stdout else None  # type: ignore[assignment]
        rest = [word for word in ours if word != "--debug"] + given[len(ours) :]
        return cli.main(rest, prog_name="oracle", standalone_mode=False, obj=given) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", CTRL_C)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, USAGE_ERRORS):
            return _say(f"error: {error}", USAGE)
        if isinstance(error, OSError):
            asked = f"use {error.filename}" if error.filename else "read or write"  # the output has no name
            reason = error.strerror or error
            return _say(f"error: cannot {asked}: {reason}: choose another place, or free space", USAGE)
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
    from oracle.result import encode, write_text

    text = json.dumps(encode(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
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

    if file is not None:
        _check_writable(file)
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


# oracle plan, oracle check


def _recipe(command: Any) -> Any:
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


def _load_recipe(task: str, file: str | None, sets: Sequence[str], short: dict[str, int | None]) -> Any:
    from oracle.recipes import load_recipe

    stated = [f"{name}={value}" for name, value in short.items() if value is not None]
    return load_recipe(task, file, [*sets, *stated])


@cli.command()
@_recipe
@click.option("--json", "output", metavar="FILE", help="Write the operations as JSON; - for the output.")
def plan(
    task: str, file: str | None, sets: tuple[str, ...], updates: int | None, epochs: int | None, seed: int | None,
    output: str | None,
) -> None:  # fmt: skip
    """Print the operations that a recipe means for TASK, before anything is trained.

    Semantics are part of a recipe: --set semantics.accumulation.normalise=sum shows another reading of it.
    """
    from oracle.tasks import find_task, load_task

    find_task(task)
    recipe = _load_recipe(task, file, sets, {"updates": updates, "epochs": epochs, "seed": seed})
    from oracle import plans
    from reference_loop import plan as planning
    from reference_loop.data import build
    from reference_loop.loader import count_samples
    from reference_loop.semantics import Semantics
    from reference_loop.task import check_wishes

    loaded = load_task(task)
    check_wishes(loaded, recipe)
    samples = count_samples(build(loaded, "train_data", recipe.seed))
    operations = planning.plan(recipe, Semantics.of(recipe), samples)
    if output is not None:
        _write_json(output, {"plan": [plans.plain(operation) for operation in operations]})
        return
    for line in plans.lines(operations):
        click.echo(line)


@cli.command()
@_recipe
@click.option("--trainer", required=True, metavar="T", help="file.py:Class, or a name from `oracle list trainers`.")
@click.option("--with", "requirements", multiple=True, metavar="REQ", help="Run it with this: transformers==4.54.0.")
@click.option("--python", metavar="PATH", help="Run it with the interpreter of another environment.")
@click.option("--allow-torch", is_flag=True, help="Let --with replace torch.")
@click.option("--policy", default="noise", metavar="P", help="What passes: noise, exact or ulp:N.  [default: noise]")
@click.option("--strict", is_flag=True, help="Fail on differences in witness values alone, too.")
@click.option("--impact", is_flag=True, help="Say how far metrics and parameters drift, against the spread over seeds.")
@click.option("--seeds", default=5, type=click.IntRange(min=5), metavar="N", help="Seeds of --impact.  [default: 5]")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds a run may take.")
@click.option("--threads", default=1, type=click.IntRange(min=1), metavar="N", help="Threads of torch.  [default: 1]")
@click.option("--device", default="cpu", metavar="D", help="Where both train.  [default: cpu]")
@click.option("--keep", metavar="DIR", help="Keep runs and traces in a new folder.")
@click.option("--json", metavar="FILE", help="Write the result as JSON; - for the output.")
@click.option("--junit", metavar="FILE", help="Write it as JUnit XML.")
@click.option("--html", metavar="FILE", help="Write it as a page.")
@click.option("--markdown", metavar="FILE", help="Write it as a bug report, with a script that shows the first cause.")
@click.option(
    "--reruns",
    default=12,
    type=click.IntRange(min=0),
    metavar="N",
    help="Checks that --markdown may spend on a smaller recipe.  [default: 12]",
)
def check(
    task: str, trainer: str, file: str | None, sets: tuple[str, ...], updates: int | None, epochs: int | None,
    seed: int | None, requirements: tuple[str, ...], python: str | None, allow_torch: bool, policy: str, strict: bool,
    impact: bool, seeds: int, timeout: float | None, threads: int, device: str, keep: str | None, reruns: int,
    **files: str | None,
) -> int:  # fmt: skip
    """Train TASK by the reference loop and by a trainer; say where they first differ, and why.

    Exit code 0: match, or rounding where the policy passes it. 1: diverged. 3: not comparable, nondeterministic, or the
    trainer failed.
    """
    from diffs.verdict import Policy, PolicyError
    from oracle.progress import shown
    from oracle.tasks import find_task
    from oracle.trainers import find_trainer

    try:
        passing = Policy.parse(policy)
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    wanted = {kind: path for kind, path in files.items() if path is not None}
    for path in wanted.values():
        _check_writable(path)
    find_task(task)
    find_trainer(trainer)
    recipe = _load_recipe(task, file, sets, {"updates": updates, "epochs": epochs, "seed": seed})
    from oracle.check import Request
    from oracle.check import check as run

    request = Request(
        task=task,
        trainer=trainer,
        recipe=recipe,
        requirements=requirements,
        python=python,
        allow_torch=allow_torch,
        policy=passing,
        strict=strict,
        seeds=seeds if impact else 0,
        timeout=timeout,
        threads=threads,
        device=device,
        folder=Path(keep) if keep else None,
        rerun=shlex.join(["oracle", *click.get_current_context().obj]),
    )
    with shown() as progress:
        result = run(request, progress)
        if "markdown" in wanted:
            from oracle.reproduction import reproduce

            result = replace(result, reproduction=reproduce(request, result, progress, reruns))
    from oracle.report import text

    if "-" not in wanted.values():
        click.echo(text.render(result), nl=False)
    _write_reports(result, wanted)
    return result.exit_code


@cli.command()
@_recipe
@click.option("--trainer", required=True, metavar="T", help="file.py:Class, or a name from `oracle list trainers`.")
@click.option("--cut", required=True, metavar="CUT", help="N, N.M, N:saved, N:save, N:evaluate, N,M..., or all.")
@click.option("--death", metavar="HOW", help="exception, SIGTERM, SIGINT, SIGKILL, full-disk, "
              "read-only.  [default: exception]")  # fmt: skip
@click.option("--kill-sweep", "kills", default=0, type=click.IntRange(min=0), metavar="N",
              help="SIGKILL at N points over the bytes of the save after CUT's updates.")  # fmt: skip
@click.option("--warm", is_flag=True, help="Interrupt and resume in forks of a process that has all imported.")
@click.option("--with", "requirements", multiple=True, metavar="REQ", help="Run it with this: transformers==4.54.0.")
@click.option("--python", metavar="PATH", help="Run it with the interpreter of another environment.")
@click.option("--strict", is_flag=True, help="Fail on differences in witness values alone, too.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds a run may take.")
@click.option("--threads", default=1, type=click.IntRange(min=1), metavar="N", help="Threads of torch.  [default: 1]")
@click.option("--keep", metavar="DIR", help="Keep runs and traces in a new folder.")
@click.option("--json", metavar="FILE", help="Write the result as JSON; - for the output.")
@click.option("--junit", metavar="FILE", help="Write it as JUnit XML.")
@click.option("--html", metavar="FILE", help="Write it as a page.")
@click.option("--markdown", metavar="FILE", help="Write it as Markdown.")
def resume(
    task: str, trainer: str, file: str | None, sets: tuple[str, ...], updates: int | None, epochs: int | None,
    seed: int | None, cut: str, death: str | None, kills: int, warm: bool, requirements: tuple[str, ...],
    python: str | None, strict: bool, timeout: float | None, threads: int, keep: str | None, **files: str | None,
) -> int:  # fmt: skip
    """Interrupt a trainer, resume it in a fresh process, and compare it with its own uninterrupted run.

    CUT says where: 3, when 3 updates are made; 3.1, and one micro-batch of the next; 3:saved, once what follows
    update 3 is saved; 3:save, while it is being saved; 3:evaluate, while the model is evaluated; 2,5, interrupted
    twice; all, at every one of these places, as a map. A recipe without [checkpoint] saves after every update.

    Exit code 0: match. 1: diverged; says which part of the state was not restored. 3: not comparable,
    nondeterministic, or the trainer failed.
    """
    from oracle.progress import shown
    from oracle.resume import cuts
    from oracle.tasks import find_task
    from oracle.trainers import find_trainer

    if kills:
        cuts.check_sweep(cut, death)
    death = death or "exception"
    cuts.check_death(death)
    chains = None if cut == "all" else [cuts.parse(cut, death)]
    wanted = {kind: path for kind, path in files.items() if path is not None}
    for path in wanted.values():
        _check_writable(path)
    find_task(task)
    find_trainer(trainer)
    recipe = _load_recipe(task, file, sets, {"updates": updates, "epochs": epochs, "seed": seed})
    from diffs.verdict import Policy
    from oracle.check import Request
    from oracle.resume.command import resume as run

    request = Request(
        task=task,
        trainer=trainer,
        recipe=recipe,
        requirements=requirements,
        python=python,
        policy=Policy.parse("exact"),
        strict=strict,
        timeout=timeout,
        threads=threads,
        folder=Path(keep) if keep else None,
        rerun=shlex.join(["oracle", *click.get_current_context().obj]),
    )
    with shown() as progress:
        result = run(request, chains, progress, death=death, kills=kills, warm=warm or kills > 0)
    from oracle.report import text

    if "-" not in wanted.values():
        click.echo(text.render(result), nl=False)
    _write_reports(result, wanted)
    return result.exit_code


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
        _check_writable(file)
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
        recipe = _load_recipe(words[0], recipe_file, sets, {})
        from oracle.check import Request

        request = Request(
            task=words[0], trainer=trainer, recipe=recipe, requirements=requirements, policy=passing, timeout=timeout,
            threads=threads, rerun=rerun,
        )  # fmt: skip
        with shown() as progress:
            found = runner.upgrade(request, versions, bisect=bisect, progress=progress)
        content, printed = found.to_dict(), list(upgrade_lines(found))
    if file is not None:
        _write_json(file, content)
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
@click.option("--kinds", metavar="K,K", help="These kinds alone: parameter,gradient.")
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
        _check_writable(file)
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
        return _say(str(error), UNDECIDED)
    if file is not None:
        _write_json(file, found.to_dict())
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
                return _say(str(error), UNDECIDED)
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


@cli.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option("--policy", default="exact", metavar="P", help="What passes: exact or ulp:N.  [default: exact]")
@click.option("--trust", is_flag=True, help="Unpickle files that name what is not known; this runs their code.")
@click.option("--all", "everything", is_flag=True, help="Show every difference.")
@click.option("--rename", multiple=True, metavar="RULE", help="In recordings, names after pattern=replacement.")
@click.option("--rerun", "again", is_flag=True, help="Run both recorded commands again, for the elements that differ.")
@as_json
def diff(
    reference: Path,
    candidate: Path,
    policy: str,
    trust: bool,
    everything: bool,
    rename: tuple[str, ...],
    again: bool,
    file: str | None,
) -> int:
    """Compare two checkpoints of any format, two recordings or two profiles.

    Exit code 0: they are the same, or the policy passes what differs. 1: they differ. 3: one cannot be read, or nothing
    could be compared.
    """
    from diffs.checkpoints.stored import Unsafe
    from diffs.verdict import NotComparable, Policy, PolicyError, exit_code
    from oracle.diff import Request
    from oracle.diff import diff as run

    try:
        passing = Policy.parse(policy)
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    if file is not None:
        _check_writable(file)
    rerun = shlex.join(["oracle", *click.get_current_context().obj])
    request = Request(
        reference=reference,
        candidate=candidate,
        policy=passing,
        trust=trust,
        everything=everything,
        rename=rename,
        again=again,
        rerun=rerun,
    )
    try:
        found = run(request)
    except NotComparable as error:
        hint = ". To unpickle it all the same, and run its code: --trust" if isinstance(error, Unsafe) else ""
        return _say(_one_line(f"not comparable: {error}{hint}"), UNDECIDED)
    if file is not None:
        _write_json(file, found.content)
    else:
        for line in found.lines:
            click.echo(line)
    return exit_code(found.verdict, found.passed)


@cli.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@as_json
def audit(checkpoint: Path, file: str | None) -> int:
    """Say which parts of a run a CHECKPOINT holds, what each absence does on a resume, and whether it is safe to load.

    Exit code 0: it is complete and safe. 1: it is not. 3: it cannot be read.
    """
    from diffs.verdict import NotComparable
    from oracle.audit import audit as run
    from oracle.report.checkpoints import audit_lines

    if file is not None:
        _check_writable(file)
    try:
        found = run(checkpoint)
    except NotComparable as error:
        return _say(_one_line(f"cannot be read: {error}"), UNDECIDED)
    if file is not None:
        _write_json(file, found.to_dict())
    else:
        for line in audit_lines(found):
            click.echo(line)
    return found.exit_code


def _one_line(message: str) -> str:
    """A message without anything that a hostile file's names could do to a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)


def _check_writable(path: str) -> None:
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


def _write_reports(result: Any, files: dict[str, str]) -> None:
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


# oracle golden


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
@_recipe
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

    _check_writable(output)
    find_task(task)
    find_trainer(trainer)
    short = {"updates": updates, "epochs": epochs, "seed": seed}
    stated = [*sets, *(f"{name}={value}" for name, value in short.items() if value is not None)]
    recipe = _load_recipe(task, file, stated, {})
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
        _check_writable(path)
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
            codes.add(_say(f"not comparable: {stale}", UNDECIDED))
            continue
        except OracleError as error:
            codes.add(_say(f"error: {error}", USAGE))
            continue
        if "-" not in wanted.values():
            click.echo("\n" * bool(number) + text.render(result), nl=False)
        _write_reports(result, wanted)
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
        return _say(f"not comparable: {stale}", UNDECIDED)
    click.echo(f"{path}: {moved}")
    return 0


def _nothing_recorded(result: Any) -> int:
    """Say why no golden can be made of a run."""
    from oracle.report import text

    click.echo(text.render(result), nl=False)
    return _say("no golden was written: the trainer must train to its end and repeat itself", UNDECIDED)


# oracle zoo


@cli.command()
@click.argument("names", nargs=-1)
@click.option("--healthy", is_flag=True, help="Run the healthy trainers alone.")
@click.option("--everywhere", is_flag=True, help="Healthy trainers on every task, 5 seeds and every precision.")
@click.option("--folder", metavar="DIR", help="Another folder of specimens.")
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="Checks at a time; by default, one a core.")
@as_json
def zoo(
    names: tuple[str, ...], healthy: bool, everywhere: bool, folder: str | None, processes: int | None, file: str | None
) -> int:
    """Run the specimens with planted faults and the healthy trainers, and print what the oracle makes of them.

    Some are run again in fresh processes. Exit code 0: every fault was found in its place, no healthy trainer was
    called wrong, and nothing was wrongly confirmed; 1: not so.
    """
    from oracle import zoo as runner

    if file is not None:
        _check_writable(file)
    place = Path(folder) if folder else runner.folder()
    if not place.is_dir():
        raise click.UsageError(f"there is no folder {place}")
    chosen = runner.specimens(place / "healthy")
    if not healthy and not everywhere:
        chosen = runner.specimens(place) + chosen
    chosen = [one for one in chosen if not names or any(one.name.startswith(name) for name in names)]
    if not chosen:
        raise click.UsageError(f"{place} has no specimen {' or '.join(names) or 'at all'}")
    if everywhere:
        built_in = [name for name in list_tasks() if name != "llama"]
        chosen = runner.healthy_cases(chosen, built_in, range(5), ("float32", "bfloat16", "float16"))
    outcomes = []
    for outcome in runner.run(chosen, processes):
        outcomes.append(outcome)
        at = f"{outcome.first[0]} {outcome.first[1]}" if outcome.first else ""
        click.echo(
            f"{'ok ' if outcome.good else 'NO '} {outcome.name:<40} {outcome.verdict:<14} {at:<12} "
            f"{'; '.join(outcome.said)}  [{outcome.replays} replays, {outcome.seconds:.1f} s]"
        )
    content = runner.summary(outcomes, chosen, () if everywhere else list(runner.again(chosen)))
    for name, value in content.items():
        click.echo(f"{name:<18} {_figure(name, value)}")
    if file is not None:
        _write_json(file, {**content, "outcomes": runner.plain(outcomes)})
    return 1 if runner.failed(content) else 0


def _figure(name: str, value: float | None) -> str:
    """A count, a share as a percentage, or nothing where nothing was planted."""
    if value is None:
        return "-"
    return f"{value:.1%}" if isinstance(value, float) and name != "seconds" else f"{value:.0f}"


# oracle semantics


@cli.command()
@click.option("--trainer", required=True, metavar="T", help="file.py:Class, or a name from `oracle list trainers`.")
@click.option("--with", "requirements", multiple=True, metavar="REQ", help="Run it with this: transformers==4.54.0.")
@click.option("--python", metavar="PATH", help="Run it with the interpreter of another environment.")
@click.option("--markdown", metavar="FILE", help="Write a page.")
@as_json
def semantics(
    trainer: str, requirements: tuple[str, ...], python: str | None, markdown: str | None, file: str | None
) -> int:
    """Infer a trainer's semantics, knob by knob, each value proven by replays on probes that separate it.

    What no probe separates is undetermined, with the values that are left. Exit code 3: it trained none of them.
    """
    from oracle.profile import render
    from oracle.profile.infer import infer
    from oracle.progress import shown
    from oracle.result import write_text
    from oracle.trainers import find_trainer

    find_trainer(trainer)
    if markdown is not None:
        _check_writable(markdown)
    with shown() as progress:
        found = infer(trainer, requirements=requirements, python=python, progress=progress)
    if markdown is not None:
        command = shlex.join(["oracle", *click.get_current_context().obj])
        write_text(markdown, render.markdown(found, command))
    if file is not None:
        _write_json(file, found.to_dict())
    else:
        for line in render.lines(found):
            click.echo(line)
    if all(entry.value is None and not entry.left for entry in found.knobs):
        return _say(f"nothing is known of {trainer}: it trained none of the probes to the end", UNDECIDED)
    return 0
