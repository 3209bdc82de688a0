"""A recording that is killed at any moment: its trace opens, verifies, and holds every update that was finished."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from diffs.first import differences
from diffs.trace import open_trace
from diffs.verdict import NotComparable
from oracle.recorder.session import Options, Session

KILLS = 100
SEED = 0
# Trains forever, and says after each update how many are finished: what follows an update is recorded with the next.
SCRIPT = """
import os, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
progress = open(sys.argv[1], "w")
for number in range(100_000):
    loss = model(torch.randn(8, 16)).square().mean()
    progress.seek(0)
    progress.write(f"{number} ")
    progress.flush()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def killed(place: Path, script: Path, delay: float) -> tuple[int, Path]:
    """Kill a recording a while after its first loss; returns how many updates were finished by then, and its folder.

    delay: seconds. The process is forked from this one, so that it need not import torch.
    """
    folder, progress = place / "trace", place / "progress"
    place.mkdir()
    child = os.fork()
    if child == 0:
        sys.argv[1:] = [str(progress)]
        Session(Options(folder=str(folder))).start()
        exec(compile(script.read_text(), str(script), "exec"), {})
        os._exit(0)
    try:
        deadline = time.monotonic() + 60
        while not (progress.exists() and progress.read_text()) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(delay)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return int(progress.read_text().split()[-1]), folder


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("script") / "endless.py"
    file.write_text(SCRIPT)
    return file


def verify(folder: Path, finished: int, whole: Path | None) -> None:
    """What must hold of a killed recording's trace. whole: another, longer one, of the same script."""
    try:
        trace = open_trace(folder)
    except NotComparable:
        assert finished == 0, "a trace of a finished update cannot be read"
        return
    with trace:
        process = trace.processes[0]
        assert process.database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        updates = {}
        for row in trace.rows_at(("update", "parameter")):
            updates.setdefault(row.address.update, []).append(row.address.name)
        assert set(range(finished)) <= updates.keys(), f"{finished} were finished, {len(updates)} are there"
        assert all(len(names) == 4 for names in updates.values())
        if whole is not None:
            with open_trace(whole) as other:
                last = min(trace.last_update, other.last_update) - 1
                found = next(differences(trace, other, decisive_only=True, through_update=last), None)
                assert found is None, found


def test_a_killed_recording_holds_every_finished_update(script: Path, tmp_path: Path) -> None:
    for number, delay in enumerate((0.5, 0.0, 0.2)):
        finished, folder = killed(tmp_path / str(number), script, delay)
        verify(folder, finished, tmp_path / "0" / "trace" if number else None)
        assert number or finished > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_kills_at_random_moments(script: Path, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    finished, whole = killed(tmp_path / "whole", script, 2.0)
    verify(whole, finished, None)
    for number in range(KILLS):
        finished, folder = killed(tmp_path / str(number), script, moments.uniform(0.0, 1.0))
        verify(folder, finished, whole)
