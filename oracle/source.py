"""One digest of all that a result depends on in this installation: our code, the built-in tasks and their recipes."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from oracle.tasks import ROOT, fixtures

PACKAGES = ("diffs", "oracle", "reference_loop")


@functools.cache
def digest() -> str:
    """A short digest of every file of ours that can change a result, the same wherever it is installed."""
    found = hashlib.blake2b(digest_size=8)
    for base, file in _files():
        name = file.relative_to(base).as_posix().encode()
        content = file.read_bytes()
        found.update(b"%d %s %d " % (len(name), name, len(content)) + content)
    return found.hexdigest()


def _files() -> list[tuple[Path, Path]]:
    """(folder, file in it), in one order everywhere."""
    ours = [(ROOT, file) for name in PACKAGES for file in sorted((ROOT / name).rglob("*.py"))]
    extra = fixtures()
    if extra is None:
        return ours
    given = [(extra, file) for name in ("tasks", "recipes") for file in sorted((extra / name).glob("*.*"))]
    return [pair for pair in ours if not pair[1].is_relative_to(extra)] + given
