"""Run released versions of trainers against each other and write docs/trainers/upgrades.md: `make upgrades`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle.result import write_text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "trainers" / "upgrades.md"
SCRIPTS = "tests/scripts/versions"
ON_TRANSFORMERS = ("--trainer", "transformers")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A chain of versions, and what was found between each and the next.

    name: what it is about. versions: requirements, old to new. common: what all of them run with.
    asked: the task with its options, or the words after `--`.
    found: for each step both versions, its verdict, and what changes: a knob with both values, or the site's place.
    remark: what else is to be said.
    """

    name: str
    versions: tuple[str, ...]
    asked: tuple[str, ...]
    found: tuple[tuple[str, ...], ...]
    common: tuple[str, ...] = ()
    remark: str = ""

    @property
    def command(self) -> list[str]:
        """The command, without the program's name."""
        reference, *candidates = self.versions
        options = ["--reference", reference]
        for one in candidates:
            options += ["--candidate", one]
        for one in self.common:
            options += ["--with", one]
        on_task = "--trainer" in self.asked
        return ["upgrade", *(self.asked if on_task else ()), *options, *(() if on_task else ("--", *self.asked))]


def script(name: str, *words: str) -> tuple[str, ...]:
    """A script of `tests/scripts/versions` with its words."""
    return ("python", f"{SCRIPTS}/{name}.py", *words)


def task(name: str, *sets: str) -> tuple[str, ...]:
    """A task under transformers, with values of its recipe."""
    return (name, *ON_TRANSFORMERS, *(word for one in sets for word in ("--set", one)))


def transformers(*versions: str) -> tuple[str, ...]:
    """Requirements of versions of transformers."""
    return tuple(f"transformers=={version}" for version in versions)


def accelerate(*versions: str) -> tuple[str, ...]:
    """Requirements of versions of accelerate."""
    return tuple(f"accelerate=={version}" for version in versions)


OLD_SETUPTOOLS = ("setuptools<81",)  # the last with pkg_resources
ROWS = (
    Row(
        name="transformers: what a window's gradient is divided by",
        versions=transformers("4.45.2", "4.46.1", "4.46.3", "4.47.1", "4.48.3"),
        common=("accelerate==1.0.1",),
        asked=task("regression", "accumulation=4", "optimizer.name=sgd", "optimizer.lr=0.05", "clip.max_norm=inf"),
        found=(
            ("transformers==4.45.2", "transformers==4.46.1", "diverged", "accumulation.normalise: micro_mean -> sum"),
            ("transformers==4.46.1", "transformers==4.46.3", "match"),
            ("transformers==4.46.3", "transformers==4.47.1", "match"),
            ("transformers==4.47.1", "transformers==4.48.3", "diverged", "accumulation.normalise: sum -> micro_mean"),
        ),
        remark="A plain module, which does not count what it divides by. What changed in the logged loss alone\n"
        "between 4.46.3 and 4.47.1 is no change of training.",
    ),
    Row(
        name="transformers: how many updates are planned",
        versions=transformers("4.51.3", "4.52.4"),
        asked=task("ragged_tail", "epochs=3", "schedule.name=linear"),
        found=(
            (
                "transformers==4.51.3",
                "transformers==4.52.4",
                "diverged",
                "schedule.horizon: floor -> ceil (suggested)",
                "schedule.stop: horizon -> epochs",
            ),
        ),
        remark="4.52.4 does not run with accelerate 1.0.1, which the versions before it were released with.",
    ),
    Row(
        name="transformers: the divisor of an epoch's last window",
        versions=transformers("4.54.0", "4.55.0"),
        asked=task("ragged_tail"),
        found=(
            (
                "transformers==4.54.0",
                "transformers==4.55.0",
                "diverged",
                "accumulation.tail_divisor: configured -> actual",
            ),
        ),
    ),
    Row(
        name="transformers: the weight of a token in a causal language model",
        versions=transformers("4.45.2", "4.46.1"),
        common=("accelerate==1.0.1",),
        asked=task("llama", "batch_size=1", "accumulation=4"),
        found=(
            (
                "transformers==4.45.2",
                "transformers==4.46.1",
                "diverged",
                "accumulation.normalise: micro_mean -> unit_mean",
            ),
        ),
    ),
    Row(
        name="transformers: which labels are counted",
        versions=transformers("4.46.1", "4.57.6", "5.24.0"),
        asked=task("llama"),
        found=(
            ("transformers==4.46.1", "transformers==4.57.6", "diverged", "accumulation.units: task -> labels"),
            ("transformers==4.57.6", "transformers==5.24.0", "diverged", "accumulation.units: labels -> task"),
        ),
    ),
    Row(
        name="transformers: the kernel of the default optimizer",
        versions=transformers("4.53.3", "4.54.0"),
        asked=task("regression", "optimizer.name=adamw", "optimizer.lr=0.01"),
        found=(("transformers==4.53.3", "transformers==4.54.0", "rounding", "optimizer.kernel: loop -> fused"),),
    ),
    Row(
        name="transformers: the default optimizer",
        versions=transformers("4.31.0", "4.32.1"),
        common=("accelerate==0.21.0",),
        asked=script("default_optimizer"),
        found=(("transformers==4.31.0", "transformers==4.32.1", "diverged", "update 0, update parameter"),),
        remark="The adapter does not run with these versions.",
    ),
    Row(
        name="transformers: the data's own seed is ignored",
        versions=transformers("4.30.2", "4.31.0"),
        common=("accelerate==0.21.0",),
        asked=script("data_seed"),
        found=(("transformers==4.30.2", "transformers==4.31.0", "diverged", "update 0, micro 0, batch input"),),
    ),
    Row(
        name="transformers: and heard again",
        versions=transformers("4.45.2", "4.46.3"),
        asked=script("data_seed"),
        found=(("transformers==4.45.2", "transformers==4.46.3", "diverged", "update 0, micro 0, batch input"),),
    ),
    Row(
        name="accelerate: the data's order after a resume in the middle of an epoch",
        versions=accelerate("1.13.0", "1.14.0", "1.15.0"),
        common=("transformers==4.57.6",),
        asked=script("resumed_order"),
        found=(
            ("accelerate==1.13.0", "accelerate==1.14.0", "match"),
            ("accelerate==1.14.0", "accelerate==1.15.0", "diverged", "update 15, micro 0, batch input"),
        ),
        remark="15 updates are the first run; update 15 is the first after the resume.",
    ),
    Row(
        name="accelerate: when the scheduler steps",
        versions=accelerate("0.15.0", "0.16.0", "0.17.1"),
        common=OLD_SETUPTOOLS,
        asked=script("scheduler_cadence"),
        found=(
            ("accelerate==0.15.0", "accelerate==0.16.0", "match"),
            ("accelerate==0.16.0", "accelerate==0.17.1", "diverged", "update 0, consume learning_rate"),
        ),
        remark="The source of 0.16.0 has the change. With a torch of today it does not take effect: 0.16.0 wraps\n"
        "`_LRScheduler`s alone, and the schedulers of torch 2 are none.",
    ),
    Row(
        name="accelerate: the order of shuffled data in one process",
        versions=accelerate("0.24.1", "0.25.0", "0.26.1"),
        asked=script("sampler"),
        found=(
            ("accelerate==0.24.1", "accelerate==0.25.0", "diverged", "update 0, micro 0, batch input"),
            ("accelerate==0.25.0", "accelerate==0.26.1", "diverged", "update 0, micro 0, batch input"),
        ),
    ),
    Row(
        name="accelerate: and back to what it was",
        versions=accelerate("0.24.1", "0.26.1"),
        asked=script("sampler"),
        found=(("accelerate==0.24.1", "accelerate==0.26.1", "match"),),
    ),
    Row(
        name="accelerate: the order of shuffled data in two processes",
        versions=accelerate("0.23.0", "0.24.1"),
        asked=("torchrun", "--standalone", "--nproc_per_node", "2", f"{SCRIPTS}/sampler.py"),
        found=(("accelerate==0.23.0", "accelerate==0.24.1", "diverged", "update 0, micro 0, batch input"),),
        remark="Another sampler is used, so the order is another from the first batch on, and not in the second epoch\n"
        "alone.",
    ),
    Row(
        name="Lightning: accumulation where training_step takes the batch alone",
        versions=("pytorch-lightning==2.0.9", "pytorch-lightning==2.1.0"),
        common=OLD_SETUPTOOLS,
        asked=script("lightning_window", "alone"),
        found=(
            (
                "pytorch-lightning==2.0.9",
                "pytorch-lightning==2.1.0",
                "diverged",
                "update 0, micro 1, backward gradient",
            ),
        ),
    ),
    Row(
        name="Lightning: validation inside a window",
        versions=("pytorch-lightning==2.0.9", "pytorch-lightning==2.1.0"),
        common=OLD_SETUPTOOLS,
        asked=script("lightning_window", "validated"),
        found=(
            (
                "pytorch-lightning==2.0.9",
                "pytorch-lightning==2.1.0",
                "diverged",
                "update 0, micro 2, backward gradient",
            ),
        ),
    ),
    Row(
        name="mmengine: the data after a resume",
        versions=("mmengine==0.10.2", "mmengine==0.10.3"),
        asked=script("mmengine_resume"),
        found=(("mmengine==0.10.2", "mmengine==0.10.3", "diverged", "update 5, micro 0, batch input"),),
    ),
)


BISECTION = Row(
    name="A bisection: from which version to which a tail's divisor is wrong",
    versions=transformers(
        "4.45.2", "4.46.3", "4.47.1", "4.48.3", "4.49.0", "4.50.3", "4.51.3", "4.52.4", "4.53.3", "4.54.0", "4.55.0",
        "4.56.2", "4.57.6",
    ),
    asked=(*task("ragged_tail"), "--bisect"),
    found=(
        ("transformers==4.45.2", "transformers==4.46.3", "diverged", "accumulation.normalise: micro_mean -> sum"),
        ("transformers==4.46.3", "transformers==4.47.1", "diverged",
         "accumulation.tail: carry_drop -> flush (suggested)"),
        ("transformers==4.47.1", "transformers==4.48.3", "diverged",
         "accumulation.normalise: sum -> micro_mean (suggested)", "accumulation.tail_divisor: actual -> configured"),
        ("transformers==4.48.3", "transformers==4.51.3", "match"),
        ("transformers==4.51.3", "transformers==4.52.4", "diverged"),
        ("transformers==4.52.4", "transformers==4.54.0", "match"),
        ("transformers==4.54.0", "transformers==4.55.0", "diverged", "accumulation.tail_divisor: configured -> actual"),
        ("transformers==4.55.0", "transformers==4.57.6", "match"),
    ),
    remark="Introduced between 4.47.1 and 4.48.3, repaired by 4.55.0. 4.49.0, 4.50.3, 4.53.3 and 4.56.2 were not run.",
)  # fmt: skip


def run(row: Row) -> dict[str, Any]:
    """What `oracle upgrade --json` gives for a row, with the seconds that it took."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "upgrade.json"
        command = [sys.executable, "-m", "oracle", row.command[0], "--json", str(file), *row.command[1:]]
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not file.exists():
            raise RuntimeError(f"{shlex.join(row.command)}: exit code {done.returncode}\n{done.stderr}")
        return {**json.loads(file.read_text()), "seconds": time.monotonic() - started}


def outcomes(content: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    """What was found, as `Row.found` has it."""
    return tuple(
        (_alone(step["reference"]), _alone(step["candidate"]), step["verdict"], *_changes(step))
        for step in content["steps"]
    )


def _alone(name: str) -> str:
    """A version's name without what all versions run with."""
    return name.rpartition(", ")[2]


def _changes(step: dict[str, Any]) -> Iterator[str]:
    for change in step.get("changes", ()):
        how = "" if change["confirmed"] else " (suggested)"
        yield f"{change['knob']}: {_value(change['old'])} -> {_value(change['new'])}{how}"
    site = step.get("difference", {}).get("site")
    if site is not None:
        yield f"{_when(site)}, {site['moment']} {site['kind']}"


def _when(site: dict[str, Any]) -> str:
    micro = f", micro {site['micro']}" if site["micro"] >= 0 else ""
    return f"update {site['update']}{micro}"


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def page(rows: Sequence[Row]) -> str:
    """The page for these rows."""
    parts = [INTRO]
    for row in rows:
        parts.append(f"## {row.name}\n\n    oracle {shlex.join(row.command)}\n\n| from | to | found |\n|---|---|---|\n")
        parts += [f"| {old} | {new} | {'; '.join(found)} |\n" for old, new, *found in row.found]
        parts.append(f"\n{row.remark}\n\n" if row.remark else "\n")
    return "".join(parts).rstrip() + "\n"


INTRO = """\
# What changes between released versions

Written by `make upgrades`, which runs every command here; `make sweep` holds the same to what is written. Versions run
in layers beside one torch, that of `constraints.txt`. Where a task is trained, the decisions that change are named;
where a script is recorded, the place where its two recordings part. The scripts lie in `tests/scripts/versions`.

pytorch-ignite 0.4.10 asks for a torch before 2 and is not here.

"""


def main() -> int:
    """Run every row and write the page; 1 if one of them gives something else than is written here."""
    wrong = 0
    rows = (*ROWS, BISECTION)
    for row in rows:
        content = run(row)
        found = outcomes(content)
        told = "as written" if found == row.found else f"found {found}, written {row.found}"
        wrong += found != row.found
        print(f"{row.name}: {told} [{content['seconds']:.0f} s]", flush=True)
    if not wrong:
        write_text(PAGE, page(rows))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
