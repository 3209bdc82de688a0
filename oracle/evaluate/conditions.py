"""What is fixed before anything is measured, and which numbers may stand side by side."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from diffs.digest import digest_bytes, digest_tensor
from oracle.environment import Environment
from oracle.evaluate.scenario import Scenario
from oracle.evaluate.schema import EvaluationError, Quantity
from oracle.processes import ROOT
from oracle.tasks import find_task, load_task

ALGORITHM = "blake2b-128"


class ConditionsDiffer(EvaluationError):
    """Numbers that were measured under different conditions, with what differs."""


def surroundings(place: Environment, scenario: Scenario, folder: Path, baseline: Path) -> dict[str, Any]:
    """Everything that an evaluation fixes and records.

    place: the candidate's environment. folder: where checkpoints go. baseline: the file of the reference loop.
    """
    return {
        "versions": dict(sorted(place.versions.items())),
        "hardware": hardware(),
        "runtime": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "torch": torch.__version__,
            "threads": 1,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "cuda": torch.version.cuda,
            "driver": _driver(),
        },
        "data": data(scenario.task),
        "seed": scenario.asked.seed,
        "permissions": permissions(folder),
        "baseline": {
            "trainer": f"{baseline.name}:Loop",
            "digest": digest_bytes(baseline.read_bytes(), ALGORITHM).hex(),
            "reference_loop": _sources(ROOT / "reference_loop"),
        },
    }


def hardware() -> dict[str, Any]:
    """The machine's processor, cores, memory and accelerators."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": cores,
        "memory_mib": memory >> 20,
        "accelerators": devices,
    }


def data(task: str) -> dict[str, Any]:
    """The version of a task's data: samples and a digest of each split, and of the task's file."""
    loaded = load_task(task)
    found: dict[str, Any] = {"task": digest_bytes(find_task(task).read_bytes(), ALGORITHM).hex()}
    for split, build in (("train", loaded.train_data), ("evaluation", loaded.eval_data)):
        if build is not None:
            samples = list(build())
            every = b"".join(
                digest_tensor(value, ALGORITHM) if torch.is_tensor(value) else repr(value).encode()
                for sample in samples
                for _, value in sorted(sample.items())
            )
            found[split] = {"samples": len(samples), "digest": digest_bytes(every, ALGORITHM).hex()}
    return found


def permissions(folder: Path) -> dict[str, Any]:
    """What the account may do where checkpoints go, each tried."""
    found: dict[str, Any] = {"user": os.getuid() if hasattr(os, "getuid") else None}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        for what in ("write", "rename", "link", "delete"):
            try:
                if what == "write":
                    (place / "a").write_bytes(b"0")
                elif what == "rename":
                    os.replace(place / "a", place / "b")
                elif what == "link":
                    os.symlink(place / "b", place / "c")
                else:
                    (place / "b").unlink()
                found[what] = True
            except OSError:
                found[what] = False
    found["free_mib"] = shutil.disk_usage(folder).free >> 30 << 10  # whole GiB: it changes while others work
    return found


def side_by_side(first: Quantity, second: Quantity, conditions: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Refuse two numbers that were measured under different conditions.

    conditions, others: the conditions of the evaluations that they belong to, by name.

    Raises:
        ConditionsDiffer: names what differs.
    """
    ours, theirs = conditions[first.under], others[second.under]
    unlike = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if unlike:
        words = ", ".join(f"{key}: {ours.get(key)} and {theirs.get(key)}" for key in unlike)
        raise ConditionsDiffer(f"{first.name} was measured under different conditions ({words})")


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _driver() -> str | None:
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    return None


def _sources(folder: Path) -> str:
    every = b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))
    return digest_bytes(every, ALGORITHM).hex()


def machine(fixed: Mapping[str, Any]) -> str:
    """The machine in words."""
    hardware, runtime = fixed["hardware"], fixed["runtime"]
    devices = ", ".join(hardware["accelerators"]) or "no accelerator"
    return f"{hardware['cores']} cores of {hardware['processor']} with {devices}, torch {runtime['torch']}"
