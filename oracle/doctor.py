"""Whether this machine can decide exactly: what it is, and whether one training gives the same bits twice."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UPDATES = 4
TIMEOUT = 120.0  # seconds for one of the two runs, imports included


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    ok: whether it allows exact decisions; None where it only informs.
    advice: what to do where it does not.
    """

    name: str
    found: str
    ok: bool | None = None
    advice: str = ""


class Plain:
    """The trainer of the two runs: the loop that the documentation of torch teaches."""

    def train(self, job: Any) -> None:
        """Train the job."""
        model = job.model()
        optimizer = job.optimizer(model)
        batches = iter(job.loader())
        for _ in range(UPDATES):
            job.loss(model, next(batches)).backward()
            optimizer.step()
            optimizer.zero_grad()


def examine() -> list[Check]:
    """All checks, the two runs last. Takes seconds: it imports torch and starts two processes."""
    import torch

    from diffs.digest import available
    from oracle.environment import layers

    digests = available()
    blas = "MKL" if torch.backends.mkl.is_available() else "no MKL"
    build = f"{torch.__version__}, {blas}, {torch.backends.cpu.get_cpu_capability()}"
    return [
        Check(name="python", found=f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Check(name="torch", found=build),
        Check(name="threads", found=f"{torch.get_num_threads()} of {os.cpu_count()} cores here, 1 in every run"),
        Check(
            name="digest",
            found=", ".join(digests),
            ok=bool(digests),
            advice="no digest is available: install xxhash",
        ),
        Check(name="xxhash", found="installed" if "xxh3-128" in digests else "not installed: recording is slower"),
        _writable("temporary folder", Path(tempfile.gettempdir())),
        _writable("layers", layers()),
        *_two_runs(),
    ]


def _writable(name: str, folder: Path) -> Check:
    """Whether a file can be made in a folder; the folder is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"written")
    except OSError as error:
        where = "TMPDIR" if name != "layers" else "ORACLE_CACHE"
        advice = f"set {where} to a folder that can be written"
        return Check(name=name, found=f"{folder}: {error.strerror}", ok=False, advice=advice)
    return Check(name=name, found=f"{folder} can be written", ok=True)


def _two_runs() -> list[Check]:
    """The flags that a run really had, and whether two runs of a tiny training are equal bit for bit."""
    from oracle import processes
    from oracle.tasks import list_tasks
    from reference_loop.recipe import from_dict, to_dict
    from reference_loop.semantics import Semantics

    recipe = from_dict({"updates": UPDATES, "optimizer": {"name": "adamw", "lr": 0.01}})
    name = "equal bit for bit"
    if "decoder" not in list_tasks():
        return [Check(name=name, found="no task to train", ok=False, advice="install the oracle with its fixtures")]
    with tempfile.TemporaryDirectory(prefix="oracle-doctor-") as place:
        folders = [Path(place) / "first", Path(place) / "second"]
        runs = [
            processes.start(
                {
                    "task": "decoder",
                    "trainer": f"{Path(__file__).resolve()}:Plain",
                    "recipe": to_dict(recipe),
                    "semantics": Semantics.of(recipe).flat(),
                    "folder": str(folder),
                    "workdir": str(folder / "work"),
                    "digest": None,
                }
            )
            for folder in folders
        ]
        for run in runs:
            ending = run.wait(TIMEOUT)
            if ending.status != "completed":
                advice = f"a run ended so: {ending.last_words}"
                return [Check(name=name, found=f"{ending.status}: {ending.detail}", ok=False, advice=advice)]
        flags = json.loads((folders[0] / "manifest.json").read_text(encoding="utf-8"))["flags"]
        first, second = (_digests(folder) for folder in folders)
    pinned = flags["threads"] == 1 and flags["deterministic_algorithms"] and flags["hash_seed"] == "0"
    differing = sorted(str(key) for key in first.keys() | second.keys() if first.get(key) != second.get(key))
    same = bool(first) and not differing
    found = f"{len(first)} values in two processes" if same else f"{len(differing)} of {len(first)} values differ"
    return [
        Check(
            name="flags",
            found=f"threads {flags['threads']}, deterministic algorithms {flags['deterministic_algorithms']}, "
            f"hash seed {flags['hash_seed']}",
            ok=pinned,
            advice="something resets torch's flags at start: look for a sitecustomize or a .pth file",
        ),
        Check(name=name, found=found, ok=same, advice=f"first: {', '.join(differing[:3])}"),
    ]


def _digests(folder: Path) -> dict[tuple[Any, ...], str]:
    """Every recorded digest of a run, by address."""
    with sqlite3.connect(folder / "trace.db") as trace:
        rows = trace.execute('SELECT "update", micro, moment, kind, name, digest FROM trace')
        return {row[:5]: row[5] for row in rows}
