"""Where a candidate runs: an environment as it is, or with a layer of other packages over it.

A layer is a folder that holds only what must differ, so torch is neither copied nor downloaded. It comes first on
PYTHONPATH. It is built aside and renamed, so it is there as a whole or not at all, and two builders do not disturb each
other; `layer.json` in it says what it holds, and on which versions of the environment below it that rests.
"""

from __future__ import annotations

import datetime
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from oracle.errors import EnvironmentRefused

FORMAT = 1
OLDEST_PYTHON, OLDEST_TORCH = (3, 11), Version("2.6")

# Run by any interpreter: what it is, and which distributions it has.
PROBE = """
import importlib.metadata, json, platform, sys, sysconfig
sys.path[:] = [entry for entry in sys.path if entry]
found = {}
for dist in importlib.metadata.distributions():
    if dist.metadata["Name"] and dist.metadata["Name"] not in found:
        found[dist.metadata["Name"]] = {"version": dist.version, "requires": dist.requires or []}
facts = {"version": platform.python_version(), "tag": sys.implementation.cache_tag}
print(json.dumps({**facts, "platform": sysconfig.get_platform(), "packages": found}))
"""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment that a candidate can run in.

    python: its interpreter.
    layer: the folder that comes before its packages, None where nothing differs.
    holds: what the layer brings, distribution to version.
    versions: of all distributions that a candidate finds there.
    seconds: spent on building the layer; 0 if it was there.
    """

    python: str
    layer: Path | None
    holds: Mapping[str, str]
    versions: Mapping[str, str]
    seconds: float

    @property
    def digest(self) -> str:
        """The fastest digest that can be computed there."""
        return "xxh3-128" if "xxhash" in self.versions else "blake2b-128"


@dataclass(frozen=True, kw_only=True)
class Base:
    """What lies below a layer: an interpreter and the distributions it has, by canonical name."""

    python: str
    version: str
    tag: str
    platform: str
    versions: Mapping[str, str]
    requires: Mapping[str, list[str]]


def prepare(
    requirements: Sequence[str] = (),
    *,
    python: str | None = None,
    allow_torch: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Environment:
    """The environment with the requirements met, its layer built if no earlier one fits.

    requirements: as pip takes them by name, e.g. "transformers==4.54.0".
    python: the interpreter of an existing environment; None is this one.
    allow_torch: let the layer hold another torch.
    say: called with one line before work that takes seconds.

    Raises:
        EnvironmentRefused: no such interpreter, no torch there, or a layer that cannot be built, with pip's reason.
    """
    asked = sorted({_parsed(text) for text in requirements})
    base = inspect(python or sys.executable)
    if not asked:
        _check_torch(base, {})
        return Environment(python=base.python, layer=None, holds={}, versions=base.versions, seconds=0.0)
    key = _hash([FORMAT, asked, base.tag, base.version, base.platform, allow_torch])
    folder, seconds = _existing(key, base), 0.0
    if folder is None:
        started = time.monotonic()
        folder = _build(key, asked, base, allow_torch, say)
        seconds = time.monotonic() - started
    holds = _manifest(folder)["holds"]
    _check_torch(base, holds)
    return Environment(
        python=base.python,
        layer=folder if holds else None,
        holds=holds,
        versions={**base.versions, **holds},
        seconds=seconds,
    )


@functools.cache
def inspect(python: str) -> Base:
    """What an interpreter is and has; nothing of it is changed.

    Raises:
        EnvironmentRefused: it cannot be run, or is older than 3.11.
    """
    path = shutil.which(python) or shutil.which(os.path.join(python, "bin", "python"))
    if path is None:
        raise EnvironmentRefused(f"--python {python}: no such interpreter: give an environment's bin/python")
    try:
        done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=60)
        facts = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        reason = f" ({error.strerror})" if isinstance(error, OSError) else ""
        raise EnvironmentRefused(
            f"--python {python}: it does not run as a Python interpreter{reason}: give an environment's bin/python"
        ) from error
    if tuple(map(int, facts["version"].split(".")[:2])) < OLDEST_PYTHON:
        raise EnvironmentRefused(f"--python {python}: it is Python {facts['version']}; the oracle needs 3.11 or later")
    packages = facts.pop("packages")
    return Base(
        python=os.path.abspath(path),
        versions={canonicalize_name(name): entry["version"] for name, entry in packages.items()},
        requires={canonicalize_name(name): entry["requires"] for name, entry in packages.items()},
        **facts,
    )


def layers() -> Path:
    """The folder in which layers are kept: under $ORACLE_CACHE, otherwise under ~/.cache/trainer-oracle."""
    cache = os.environ.get("ORACLE_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "trainer-oracle") / "layers"


def _parsed(text: str) -> str:
    """A requirement in one canonical spelling. Folders and URLs are refused: what is behind them can change unseen."""
    if "/" in text and "@" not in text:
        raise EnvironmentRefused(
            f"--with {text!r}: a folder or URL is not cached: put it into an environment, see --python"
        )
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise EnvironmentRefused(
            f"--with {text!r}: not a requirement ({reason}): write e.g. 'transformers==4.54.0'"
        ) from None
    if requirement.url is not None:
        raise EnvironmentRefused(f"--with {text!r}: a URL is not cached: put it into an environment, see --python")
    requirement.name = canonicalize_name(requirement.name)
    return str(requirement)


def _check_torch(base: Base, holds: Mapping[str, str]) -> None:
    found = holds.get("torch") or base.versions.get("torch")
    if found is None:
        raise EnvironmentRefused(f"{base.python} has no torch: pip install torch there, or choose another --python")
    if Version(found) < OLDEST_TORCH:
        raise EnvironmentRefused(f"{base.python} has torch {found}; the oracle needs {OLDEST_TORCH} or later there")


def _existing(key: str, base: Base) -> Path | None:
    """A layer built for this request whose environment below still has the versions that the layer rests on."""
    for folder in sorted(layers().glob(f"{key}-*")):
        with suppress(OSError, json.JSONDecodeError):
            rests_on = _manifest(folder)["rests_on"]
            if all(base.versions.get(name) == version for name, version in rests_on.items()):
                return folder
    return None


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "layer.json").read_text(encoding="utf-8"))


def _build(key: str, asked: list[str], base: Base, allow_torch: bool, say: Callable[[str], None]) -> Path:
    """Resolve, install aside, rename. Whatever goes wrong, nothing half-built stays.

    Raises:
        EnvironmentRefused: pip cannot resolve or install, or the cache cannot be written.
    """
    started = time.monotonic()
    shown = ", ".join(asked)
    if PathFinder.find_spec("pip") is None:  # importlib.util would ask setuptools, which then gives up its distutils
        raise EnvironmentRefused(f"--with {shown}: a layer is built by pip, which {sys.executable} lacks: install pip")
    try:
        layers().mkdir(parents=True, exist_ok=True)
        _remove_abandoned()
        with _aside() as aside:
            say(f"resolving {shown}")
            packages = _resolve(asked, base, allow_torch, aside)
            holds = {canonicalize_name(one["name"]): one["version"] for one in packages}
            brought = ", ".join(f"{name} {version}" for name, version in holds.items())
            say(f"building a layer: {brought or 'nothing differs'}")
            content = aside / "content"
            content.mkdir()
            if holds:
                pins = [f"{name}=={version}" for name, version in holds.items()]
                options = ["--target", str(content), "--no-deps", "--no-compile"]
                _pip(base, ["install", *options, *pins], asked)
            rests_on = _rests_on(asked, packages, base)
            manifest = {
                "format": FORMAT,
                "asked": asked,
                "holds": holds,
                "rests_on": rests_on,
                "python": base.version,
                "platform": base.platform,
                "built": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "seconds": round(time.monotonic() - started, 1),
                "megabytes": round(sum(file.stat().st_size for file in content.rglob("*") if file.is_file()) / 1e6, 1),
            }
            (content / "layer.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            final = layers() / f"{key}-{_hash(sorted(rests_on.items()))}"
            with suppress(OSError):  # another builder was first: the same request, the same content
                content.rename(final)
            if not final.is_dir():
                raise OSError(f"cannot make {final}")
            return final
    except OSError as error:
        place = error.filename or layers()
        raise EnvironmentRefused(
            f"--with {shown}: the layer cannot be written: {place}: {error.strerror or error}: "
            "free space, or set ORACLE_CACHE to another folder"
        ) from error


@contextmanager
def _aside() -> Iterator[Path]:
    """A folder beside the layers that goes away with us; locked meanwhile, so that others know it is in use."""
    with (
        tempfile.TemporaryDirectory(prefix=".building-", dir=layers(), ignore_cleanup_errors=True) as name,
        open(Path(name) / "taken", "w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(lock.name).rename(Path(name) / "lock")  # so that nobody ever finds it free while we are there
        yield Path(name)


def _remove_abandoned() -> None:
    """Remove what builders that were killed have left: their locks are free."""
    for path in layers().glob(".building-*/lock"):
        with suppress(OSError), open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def _resolve(asked: list[str], base: Base, allow_torch: bool, aside: Path) -> list[dict[str, Any]]:
    """The metadata of exactly those distributions that must be installed, given what is there."""
    options = ["--dry-run", "--report", str(aside / "report.json")]
    torch = base.versions.get("torch")
    if torch is not None and not allow_torch:
        constraint = aside / "constraint.txt"
        constraint.write_text(f"torch=={torch}\n")
        options += ["--constraint", str(constraint)]
    _pip(base, ["install", *options, *asked], asked)
    report = json.loads((aside / "report.json").read_text(encoding="utf-8"))
    return [item["metadata"] for item in report["install"]]


def _pip(base: Base, arguments: list[str], asked: list[str]) -> None:
    """Run pip for the environment below.

    Raises:
        EnvironmentRefused: it failed; says why in one sentence.
    """
    target = [] if base.python == os.path.abspath(sys.executable) else ["--python", base.python]
    command = [sys.executable, "-m", "pip", *target, *arguments, "--no-input", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--retries", "2"], capture_output=True, text=True)
    if done.returncode:
        raise EnvironmentRefused(f"--with {', '.join(asked)}: {_reason(done.stdout + done.stderr, base, asked)}")


UNREACHABLE = re.compile(r"Failed to establish a new connection|name resolution|Max retries exceeded|unreachable")


def _reason(output: str, base: Base, asked: list[str]) -> str:
    """Why pip failed, and what to do."""
    forced = re.search(r"^\s*(\S.* depends on torch\b.*)$", output, re.MULTILINE)
    wished = next((text for text in asked if Requirement(text).name == "torch"), None)
    why = forced[1].strip() if forced else f"it asks for {wished}" if wished else None
    if why and "ResolutionImpossible" in output:
        return (
            f"{why}, and torch {base.versions['torch']} is never replaced here: ask for another version, "
            "use --python with an environment of its own, or pass --allow-torch"
        )
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    told = [line for line in errors if not line.startswith("ResolutionImpossible")]
    if told and told[-1].startswith("Exception:"):  # a traceback follows
        told = []
    last = (told or output.splitlines() or ["no message"])[-1].strip()
    if "No space left on device" in output:
        return "the disk is full: free space, or set ORACLE_CACHE and TMPDIR to other folders"
    if UNREACHABLE.search(output):
        return f"the package index cannot be reached, and only a layer built before needs none. pip says: {last}"
    return f"pip cannot build the layer: check its name and version, and that an index has it. pip says: {last}"


def _rests_on(asked: list[str], packages: list[dict[str, Any]], base: Base) -> dict[str, str]:
    """The distributions below that the layer's own need, directly or not, with their versions; torch always."""
    brought = {canonicalize_name(one["name"]): one.get("requires_dist", []) for one in packages}
    waiting = [*map(Requirement, asked), *(Requirement(text) for needs in brought.values() for text in needs)]
    extras = {"", *(extra for text in asked for extra in Requirement(text).extras)}
    found = {"torch": base.versions["torch"]} if "torch" in base.versions and "torch" not in brought else {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or name in brought or name not in base.versions:
            continue
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            found[name] = base.versions[name]
            waiting += map(Requirement, base.requires[name])
    return dict(sorted(found.items()))


def _hash(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
