"""`oracle diff` and `audit`: what only reads files."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from oracle.cli.frame import UNDECIDED, cli, say
from oracle.cli.shared import as_json, check_writable, one_line, write_json


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
        check_writable(file)
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
        return say(one_line(f"not comparable: {error}{hint}"), UNDECIDED)
    if file is not None:
        write_json(file, found.content)
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
        check_writable(file)
    try:
        found = run(checkpoint)
    except NotComparable as error:
        return say(one_line(f"cannot be read: {error}"), UNDECIDED)
    if file is not None:
        write_json(file, found.to_dict())
    else:
        for line in audit_lines(found):
            click.echo(line)
    return found.exit_code
