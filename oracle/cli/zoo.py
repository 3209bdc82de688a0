"""`oracle zoo`: what the oracle makes of trainers with planted faults."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from oracle.cli.frame import cli
from oracle.cli.shared import as_json, check_writable, cluster_option, write_json
from oracle.tasks import list_tasks


@cli.command()
@click.argument("names", nargs=-1)
@click.option("--healthy", is_flag=True, help="Run the healthy trainers alone.")
@click.option("--everywhere", is_flag=True, help="Healthy trainers on every task, 5 seeds and every precision.")
@click.option("--folder", metavar="DIR", help="Another folder of specimens.")
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="Checks at a time; by default, one a core.")
@cluster_option
@as_json
def zoo(
    names: tuple[str, ...], healthy: bool, everywhere: bool, folder: str | None, processes: int | None,
    where: Literal["local", "ray"], file: str | None,
) -> int:  # fmt: skip
    """Run the specimens with planted faults and the healthy trainers, and print what the oracle makes of them.

    Some are run again in fresh processes. Exit code 0: every fault was found in its place, no healthy trainer was
    called wrong, and nothing was wrongly confirmed; 1: not so.
    """
    from oracle import zoo as runner

    if file is not None:
        check_writable(file)
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
    for outcome in runner.run(chosen, processes, where):
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
        write_json(file, {**content, "outcomes": runner.plain(outcomes)})
    return 1 if runner.failed(content) else 0


def _figure(name: str, value: float | None) -> str:
    """A count, a share as a percentage, or nothing where nothing was planted."""
    if value is None:
        return "-"
    return f"{value:.1%}" if isinstance(value, float) and name != "seconds" else f"{value:.0f}"
