"""The command line: a thin skin over the library. Every import that takes time is inside the command that needs it.

A command returns its exit code (0 match, 1 diverged, 2 usage, 3 not decidable); None is 0. What it raises and
`USAGE_ERRORS` knows is printed as one message.
"""

from oracle.cli import evaluations, files, goldens, listing, recordings, training, zoo  # each adds its commands
from oracle.cli.frame import cli, main

__all__ = ["cli", "evaluations", "files", "goldens", "listing", "main", "recordings", "training", "zoo"]
