"""The frame of the command line: how commands are found, and what becomes of their exit codes and errors."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from oracle import __version__
from oracle.errors import USAGE_ERRORS, near_miss
from oracle.output import Output

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


def main(arguments: Sequence[str] | None = None, command: click.Command = cli, name: str = "oracle") -> int:
    """Run one command line; returns the exit code. Errors are one message on the standard error.

    command, name: what the line is of, where it is not one of `oracle`'s.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in ours
    try:
        if arguments is None:  # a process of our own: it leaves nothing behind, as after Ctrl-C
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
            sys.stdout = Output(sys.stdout) if sys.stdout else None  # type: ignore[assignment]
        rest = [word for word in ours if word != "--debug"] + given[len(ours) :]
        return command.main(rest, prog_name=name, standalone_mode=False, obj=given) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return say("interrupted", CTRL_C)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, USAGE_ERRORS):
            return say(f"error: {error}", USAGE)
        if isinstance(error, OSError):
            asked = f"use {error.filename}" if error.filename else "read or write"  # the output has no name
            reason = error.strerror or error
            return say(f"error: cannot {asked}: {reason}: choose another place, or free space", USAGE)
        return say(
            f"error: {type(error).__name__}: {error}\nThis is a fault of the oracle; --debug shows where.", UNDECIDED
        )


def say(message: str, code: int) -> int:
    click.echo(message, err=True)
    return code
