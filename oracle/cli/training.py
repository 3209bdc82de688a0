"""`oracle plan`, `check`, `resume` and `semantics`: what trains a task."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import click

from oracle.cli.frame import UNDECIDED, cli, say
from oracle.cli.shared import (
    argument_option,
    as_json,
    asked_arguments,
    asked_recipe,
    check_writable,
    recipe_options,
    write_json,
    write_reports,
)


@cli.command()
@recipe_options
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
    recipe = asked_recipe(task, file, sets, {"updates": updates, "epochs": epochs, "seed": seed})
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
        write_json(output, {"plan": [plans.plain(operation) for operation in operations]})
        return
    for line in plans.lines(operations):
        click.echo(line)


@cli.command()
@recipe_options
@click.option("--trainer", required=True, metavar="T", help="file.py:Class, or a name from `oracle list trainers`.")
@argument_option
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
    seed: int | None, given: tuple[str, ...], requirements: tuple[str, ...], python: str | None, allow_torch: bool,
    policy: str, strict: bool, impact: bool, seeds: int, timeout: float | None, threads: int, device: str,
    keep: str | None, reruns: int, **files: str | None,
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
        check_writable(path)
    arguments = asked_arguments(given)
    find_task(task)
    find_trainer(trainer)
    recipe = asked_recipe(task, file, sets, {"updates": updates, "epochs": epochs, "seed": seed})
    from oracle.check import Request, follow
    from oracle.check import check as run
    from oracle.nodes import launched

    folder = Path(keep) if keep else None
    launch = launched(recipe.parallel.ranks, folder)
    request = Request(
        task=task,
        trainer=trainer,
        recipe=recipe,
        arguments=arguments,
        requirements=requirements,
        python=python,
        allow_torch=allow_torch,
        policy=passing,
        strict=strict,
        seeds=seeds if impact else 0,
        timeout=timeout,
        threads=threads,
        device=device,
        folder=folder,
        launch=launch,
        rerun=shlex.join(["oracle", *click.get_current_context().obj]),
    )
    if launch is not None and launch.rank > 0:
        return follow(request)
    with shown() as progress:
        result = run(request, progress)
        if "markdown" in wanted:
            from oracle.reproduction import reproduce

            result = replace(result, reproduction=reproduce(request, result, progress, reruns))
    from oracle.report import text

    if "-" not in wanted.values():
        click.echo(text.render(result), nl=False)
    write_reports(result, wanted)
    return result.exit_code


@cli.command()
@recipe_options
@click.option("--trainer", required=True, metavar="T", help="file.py:Class, or a name from `oracle list trainers`.")
@argument_option
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
    seed: int | None, given: tuple[str, ...], cut: str, death: str | None, kills: int, warm: bool,
    requirements: tuple[str, ...], python: str | None, strict: bool, timeout: float | None, threads: int,
    keep: str | None, **files: str | None,
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
        check_writable(path)
    arguments = asked_arguments(given)
    find_task(task)
    find_trainer(trainer)
    recipe = asked_recipe(task, file, sets, {"updates": updates, "epochs": epochs, "seed": seed})
    from diffs.verdict import Policy
    from oracle.check import Request, follow
    from oracle.nodes import launched
    from oracle.resume.command import resume as run

    folder = Path(keep) if keep else None
    launch = launched(recipe.parallel.ranks, folder)
    if launch is not None and (warm or kills):
        raise click.UsageError("--warm and --kill-sweep fork all ranks on one machine: leave them out under a launcher")
    request = Request(
        task=task,
        trainer=trainer,
        recipe=recipe,
        arguments=arguments,
        requirements=requirements,
        python=python,
        policy=Policy.parse("exact"),
        strict=strict,
        timeout=timeout,
        threads=threads,
        folder=folder,
        launch=launch,
        rerun=shlex.join(["oracle", *click.get_current_context().obj]),
    )
    if launch is not None and launch.rank > 0:
        return follow(request)
    with shown() as progress:
        result = run(request, chains, progress, death=death, kills=kills, warm=warm or kills > 0)
    from oracle.report import text

    if "-" not in wanted.values():
        click.echo(text.render(result), nl=False)
    write_reports(result, wanted)
    return result.exit_code


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
        check_writable(markdown)
    with shown() as progress:
        found = infer(trainer, requirements=requirements, python=python, progress=progress)
    if markdown is not None:
        command = shlex.join(["oracle", *click.get_current_context().obj])
        write_text(markdown, render.markdown(found, command))
    if file is not None:
        write_json(file, found.to_dict())
    else:
        for line in render.lines(found):
            click.echo(line)
    if all(entry.value is None and not entry.left for entry in found.knobs):
        return say(f"nothing is known of {trainer}: it trained none of the probes to the end", UNDECIDED)
    return 0
