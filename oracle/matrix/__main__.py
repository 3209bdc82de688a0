"""All trainers on all tasks under all recipes: `python -m oracle.matrix FOLDER`; `make matrix` runs it.

Each answer is kept in build/matrix as it comes, so an interrupted run goes on. One is used again while what it rests
on is the same: the oracle's source, the versions of the trainer's layer and of torch, and what is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from oracle import cluster
from oracle.cli import frame
from oracle.cli.shared import check_writable, cluster_option
from oracle.errors import EnvironmentRefused, OutputError, near_miss
from oracle.matrix import cell, table
from oracle.matrix.cell import Answer, Cell
from oracle.matrix.recipes import VARIANTS
from oracle.releases import RELEASES
from oracle.result import write_text
from oracle.tasks import list_tasks
from oracle.trainers import list_trainers

KEPT = "build/matrix"
PAGE = "matrix.md"


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--trainer", "trainers", multiple=True, metavar="T", help="These alone: keras, or 'transformers 5.24.0'.")
@click.option("--task", "tasks", multiple=True, metavar="T", help="These alone.")
@click.option("--recipe", "variants", multiple=True, metavar="R", help=f"These alone: {', '.join(VARIANTS)}.")
@click.option("--kept", default=KEPT, show_default=True, metavar="DIR", help="Where answers are kept.")
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="Cells at a time; by default, one a core.")
@cluster_option
def matrix(
    folder: str, trainers: tuple[str, ...], tasks: tuple[str, ...], variants: tuple[str, ...], kept: str,
    processes: int | None, where: cluster.Where,
) -> int:  # fmt: skip
    """Write FOLDER/matrix.md: what the oracle says of every trainer on every task under every recipe."""
    cells = chosen(trainers, tasks, variants)
    answers = answer(cells, _folder(kept), where, processes)
    check_writable(str(_folder(folder) / PAGE))
    write_text(Path(folder) / PAGE, table.page({one: answers[one] for one in cells}))
    click.echo(f"{len(cells)} cells, written to {Path(folder) / PAGE}")
    return 0


def chosen(trainers: Sequence[str] = (), tasks: Sequence[str] = (), variants: Sequence[str] = ()) -> list[Cell]:
    """The cells of the page, by trainer, recipe and task; all of what is not named.

    Raises:
        UsageError: a name that nothing has.
    """
    listed = [one.name for one in list_trainers()]
    stated = {name for name, _ in RELEASES}
    releases = sorted((*RELEASES, *((name, ()) for name in listed if name not in stated)), key=lambda one: one[0])
    every = [
        Cell(trainer=trainer, requirements=requirements, task=task, variant=variant)
        for trainer, requirements in releases
        for variant in VARIANTS
        for task in list_tasks()
    ]
    for option, named, known in (
        ("--trainer", trainers, {*listed, *map(table.label, every)}),
        ("--task", tasks, {*list_tasks()}),
        ("--recipe", variants, {*VARIANTS}),
    ):
        if unknown := [name for name in named if name not in known]:
            raise click.UsageError(f"{option} {unknown[0]}: {near_miss(unknown[0], known)}")
    return [
        one
        for one in every
        if (not trainers or one.trainer in trainers or table.label(one) in trainers)
        and (not tasks or one.task in tasks)
        and (not variants or one.variant in variants)
    ]


def answer(
    cells: Sequence[Cell], folder: Path, where: cluster.Where = "local", processes: int | None = None
) -> dict[Cell, Answer]:
    """An answer for each cell: the one that is kept in the folder if it still holds, otherwise a new one."""
    answers: dict[Cell, Answer] = {}
    refused: dict[tuple[str, ...], str] = {}
    waiting = []
    for one in cells:
        needs = one.all_requirements
        try:
            if needs not in refused:
                known = cell.key(one, cell.surroundings(one, lambda words: click.echo(f"  {words}")))
        except EnvironmentRefused as error:
            refused[needs] = str(error)
            click.echo(f"ABSENT {table.label(one)}: {error}")
        if needs in refused:
            answers[one] = Answer(key="", state="absent", reason=refused[needs])
            continue
        found = cell.kept(one.file(folder))
        if found is not None and found.key == known:
            answers[one] = found
        else:
            waiting.append(one)
    waiting.sort(key=lambda one: (one.trainer, one.all_requirements, one.task in cell.NEEDS))  # who shares a server
    click.echo(f"{len(cells)} cells, {len(waiting)} to be run")
    for count, (number, new) in enumerate(cluster.spread(cell.run, waiting, where=where, workers=processes), start=1):
        one = waiting[number]
        answers[one] = new
        if new.state != "absent":
            cell.keep(new, one.file(folder))
        which = f"{table.label(one):<20} {one.variant:<9} {one.task:<12}"
        said = f"{table.said(new)} {new.reason}".strip()
        click.echo(f"{count:4}/{len(waiting)} {which} {new.seconds:5.1f} s  {said}")
    return answers


def _folder(path: str) -> Path:
    """A folder, made if it is not there.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {path}: {error.strerror}: name a folder that can be written") from error
    return Path(path)


if __name__ == "__main__":
    sys.exit(frame.main(command=matrix, name="python -m oracle.matrix"))
