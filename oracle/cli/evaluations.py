"""`oracle evaluate` and `oracle archive`: whether a trainer can be adopted, and whether a stored evaluation holds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from oracle.cli.frame import Commands, cli
from oracle.cli.shared import as_json, check_writable, cluster_option


@cli.command()
@click.option("--trainer", "names", required=True, multiple=True, metavar="T",
              help="file.py:Class, or a name from `oracle list trainers`; several stand side by side.")  # fmt: skip
@click.option("--scenario", "asked", required=True, metavar="S",
              help="research, production, platform or efficiency, or a TOML file.")  # fmt: skip
@click.option(
    "-o", "--output", metavar="DIR", help="Where the record goes, one folder a trainer.  [default: evaluation]"
)
@click.option("--with", "requirements", multiple=True, metavar="REQ", help="Run it with this: transformers==4.57.6.")
@click.option("--python", metavar="PATH", help="Run it with the interpreter of another environment.")
@click.option("--dimensions", metavar="D,D", help="These alone: functional, semantic, performance, consistency.")
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="MINUTES",
              help="Leave out, and say so, what does not fit into this time; each trainer has its own.")  # fmt: skip
@click.option("--observations", metavar="FILE", help="Dated results of canaries and projects, as TOML.")
@click.option("--archive", "zipped", metavar="FILE", help="Write the record as a zip, too; of one trainer.")
@click.option("--no-traces", "bare", is_flag=True, help="Keep no traces in the record.")
@click.option("--markdown", metavar="FILE", help="Write the report as a page.")
@cluster_option
@as_json
def evaluate(
    names: tuple[str, ...], asked: str, output: str | None, requirements: tuple[str, ...], python: str | None,
    dimensions: str | None, budget: float | None, observations: str | None, zipped: str | None, bare: bool,
    markdown: str | None, where: Literal["local", "ray"], file: str | None,
) -> int:  # fmt: skip
    """Evaluate a trainer for a scenario by experiment, and keep the evidence.

    What is run is written to a record as it comes; the same command goes on where it was interrupted. The conclusions
    are conditional sentences with the rows they rest on. Several trainers are evaluated one after another, on Ray each
    on a whole node. Exit code 0: it can be adopted, or under conditions. 1: not as it is. 3: what decides is not known.
    """
    from oracle.trainers import find_trainer

    for path in filter(None, (zipped, markdown, file)):
        check_writable(path)
    for name in names:
        find_trainer(name)
    if zipped is not None and len(names) > 1:
        raise click.UsageError("--archive goes with one --trainer")
    from oracle.evaluate import archive, check, frame, scenario
    from oracle.evaluate import observations as seen
    from oracle.report import evaluations
    from oracle.result import write_text

    wanted = scenario.load(asked)
    rows = [one.full_name for one in check.every()]
    chosen = [word.strip() for word in dimensions.split(",")] if dimensions else []
    known = frame.dimensions(())
    if unknown := [word for word in chosen if word not in known]:
        raise click.UsageError(f"--dimensions {dimensions}: no dimension {unknown[0]!r}: known: {', '.join(known)}")
    observed = seen.load(Path(observations), rows) if observations else ()
    requests = [
        frame.Asked(
            trainer=name,
            scenario=wanted,
            folder=_folder(Path(output or "evaluation"), name, len(names)),
            requirements=requirements,
            python=python,
            dimensions=frame.dimensions(chosen),
            budget=budget,
            observations=observed,
            command=shlex.join(["oracle", *click.get_current_context().obj]),
        )
        for name in names
    ]
    found = []
    for request, one in zip(requests, _evaluated(requests, where), strict=True):
        found.append(one)
        if bare:
            archive.clear(request.folder)
        archive.seal(request.folder, one, evaluations.markdown(one))
        if zipped is not None:
            archive.pack(request.folder, Path(zipped))
        if file != "-":
            for line in evaluations.lines(one):
                click.echo(line)
    text = found[0].to_json() if len(found) == 1 else f"[{','.join(one.to_json() for one in found)}]\n"
    page = "\n".join(evaluations.markdown(one) for one in found)
    if len(found) > 1:
        click.echo(evaluations.side_by_side(found), err=file == "-")
        page = f"{evaluations.side_by_side(found)}\n{page}"
    for asked_file, content in ((file, text), (markdown, page)):
        if asked_file == "-":
            click.echo(content, nl=False)
        elif asked_file is not None:
            write_text(asked_file, content)
    return max(evaluations.exit_code(one) for one in found)


def _evaluated(requests: Sequence[Any], where: Literal["local", "ray"]) -> Iterator[Any]:
    """The evaluations, in order. Here they run one after another, because what is timed must run alone.

    On Ray each takes a node with all its processors; their records must lie in a folder that all nodes share.
    """
    from oracle import cluster
    from oracle.evaluate import frame
    from oracle.progress import shown

    if where == "ray":
        with shown() as progress:
            progress(f"evaluating {len(requests)} on Ray, each on a node of its own")
            answers = list(cluster.in_order(cluster.spread(_on_a_node, requests, where="ray", whole_nodes=True)))
        yield from answers
        return
    for one in requests:
        with shown() as progress:
            answer = frame.evaluate(one, progress)
        yield answer


def _on_a_node(worker: Any, asked: Any) -> Any:
    from oracle.evaluate import frame

    return frame.evaluate(asked)


def _folder(output: Path, trainer: str, count: int) -> Path:
    """A trainer's folder: the one that was named, or one in it for each of several."""
    return output if count == 1 else output / trainer.rpartition("/")[2].replace(":", "-").replace(".py", "")


@cli.group(cls=Commands, name="archive")
def stored() -> None:
    """Read stored evaluations."""


@stored.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
def verify(path: Path) -> int:
    """Verify the record of an evaluation in PATH, a folder or a zip.

    Every file is the one that was sealed, every artifact that a row names is there, and the same checks of the stored
    artifacts give the same rows and conclusions. Exit code 0: it holds. 1: it does not.
    """
    from oracle.evaluate import archive

    wrong = archive.verify(path)
    for sentence in wrong:
        click.echo(sentence)
    if not wrong:
        found = archive.read(path)
        click.echo(f"{found.title}, {found.date}: {len(found.rows)} rows hold, each given by its artifacts")
    return 1 if wrong else 0
