"""Replays: readings that share a run leave exactly the traces that they leave alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from oracle.replays import Reading, Replay, ReplayFailed, Replays, Server
from reference_loop.recipe import Checkpoint, Recipe, load
from reference_loop.semantics import KNOBS, Semantics


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("server"))
    yield one
    one.close()


def _replays(server: Server, task: Path, folder: Path) -> Replays:
    return Replays(server, str(task), folder, digest="blake2b-128", device="cpu")


def _readings(recipe: Recipe) -> list[Reading]:
    """The textbook's reading, and every one that one knob makes of it."""
    textbook = Reading(recipe=recipe, semantics=Semantics.of(recipe))
    others = [
        textbook.with_knob(name, value)
        for name, knob in KNOBS.items()
        if name != "resume.missing"
        for value in knob.values
        if value != textbook.semantics.value(name)
    ]
    return [textbook, *others]


def _rows(run: Replay | ReplayFailed) -> list[tuple[object, ...]] | str:
    if isinstance(run, ReplayFailed):
        return str(run)
    with closing(sqlite3.connect(run.folder / "trace.db")) as database:
        return database.execute("SELECT * FROM trace ORDER BY ordinal").fetchall()


@pytest.mark.parametrize(
    ("task", "recipe"),
    [
        ("regression", "float16"),
        pytest.param("ragged_tail", "ragged_tail", marks=pytest.mark.slow),
        pytest.param("batchnorm", "shuffle", marks=pytest.mark.slow),
    ],
)
def test_a_branch_is_the_run_alone(server: Server, root: Path, tmp_path: Path, task: str, recipe: str) -> None:
    readings = _readings(replace(load(root / f"fixtures/recipes/{recipe}.toml"), checkpoint=Checkpoint(every=1)))
    file = root / f"fixtures/tasks/{task}.py"
    replays = _replays(server, file, tmp_path / "together")
    together = replays.run(*readings)
    assert replays.count <= 2 < replays.readings == len(readings)
    alone = _replays(server, file, tmp_path / "alone")
    for reading, run in zip(readings, together, strict=True):
        (single,) = alone.run(reading)
        assert _rows(run) == _rows(single)
        if isinstance(run, Replay):
            assert isinstance(single, Replay)
            assert (run.samples, run.units, run.nan) == (single.samples, single.units, single.nan)
            saved = [sorted(p.name for p in (r.folder / "work").glob("*")) for r in (run, single)]
            assert saved[0] == saved[1]
            assert run.trace.manifest["semantics"] == reading.semantics.flat()
    assert alone.count == alone.readings == len(readings)


def test_through_an_update(server: Server, root: Path, tmp_path: Path) -> None:
    readings = _readings(load(root / "fixtures/recipes/ragged_tail.toml"))[:6]
    file = root / "fixtures/tasks/ragged_tail.py"
    together = _replays(server, file, tmp_path / "together").run(*readings, through=0)
    alone = _replays(server, file, tmp_path / "alone")
    for reading, run in zip(readings, together, strict=True):
        (single,) = alone.run(reading, through=0)
        assert _rows(run) == _rows(single)


HELD = """
import torch
from pathlib import Path
from reference_loop.task import Task

{before}
class Numbers(torch.utils.data.Dataset):
    def __init__(self):
        {opened}
    def __len__(self):
        return 10
    def __getitem__(self, at):
        {read}
        return {{"x": torch.full((2,), value), "y": torch.tensor([value * 2])}}

def loss(model, batch, reduction):
    return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"], reduction=reduction)

task = Task(name="held", model=lambda: torch.nn.Linear(2, 1), train_data=Numbers, loss=loss,
            units=lambda batch: len(batch["x"]))
"""


@pytest.mark.parametrize(
    ("before", "opened", "read"),
    [
        ("", "self.file = open(Path(__file__).with_name('n.txt'))", "value = float(self.file.readline() or 1)"),
        (
            "import threading",
            "threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "value = float(at + 1) / 10",
        ),
    ],
    ids=["file", "thread"],
)
def test_a_run_that_cannot_be_forked_is_repeated(
    server: Server, root: Path, tmp_path: Path, before: str, opened: str, read: str
) -> None:
    file = tmp_path / "held.py"
    file.write_text(HELD.format(before=before, opened=opened, read=read))
    (tmp_path / "n.txt").write_text("\n".join(str(i / 10) for i in range(1, 30)))
    readings = _readings(load(root / "fixtures/recipes/ragged_tail.toml"))[:8]
    replays = _replays(server, file, tmp_path / "together")
    runs = replays.run(*readings)
    assert replays.count >= len(readings)
    alone = _replays(server, file, tmp_path / "alone")
    assert [_rows(run) for run in runs] == [_rows(alone.one(reading)) for reading in readings]


def test_an_error_in_a_shared_run_is_each_reading_s(server: Server, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "fails.py"
    file.write_text(HELD.format(before="", opened="pass", read="value = 1 / 0"))
    readings = _readings(load(root / "fixtures/recipes/ragged_tail.toml"))[:5]
    runs = _replays(server, file, tmp_path / "r").run(*readings)
    assert ["raised ZeroDivisionError" in str(run) for run in runs] == [True] * 5
