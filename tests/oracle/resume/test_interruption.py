"""A run dies where it is told to, in the way that it is told to, and leaves what it had written by then."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from oracle.processes import DEFAULTS
from oracle.resume.cuts import parse
from reference_loop.recipe import from_dict, to_dict
from reference_loop.semantics import Semantics


@pytest.fixture
def die(server, trainers, tmp_path):
    """Run a trainer to a cut in a fork; returns what the server says of it, and its workdir."""
    recipe = from_dict({"updates": 4, "batch_size": 2, "checkpoint": {"every": 1}, "evaluate": {"every": 1}})

    def run(name, cut, death="exception", **more) -> tuple[dict, Path]:
        (wanted,) = parse(cut, death)
        work = tmp_path / "work"
        work.mkdir()
        spec = {
            **DEFAULTS,
            "task": "ragged_tail",
            "trainer": f"{trainers}:{name}",
            "recipe": to_dict(recipe),
            "semantics": Semantics.of(recipe).flat(),
            "digest": "blake2b-128",
            "folder": str(tmp_path / "run"),
            "workdir": str(work),
            "timeout": 60.0,
            "started": 0.0,
            "cut": replace(wanted, **more).spec(),
        }
        (outcome,) = server.ask([spec])
        return outcome, work

    return run


def test_an_exception_comes_with_the_optimizers_step(die):
    outcome, work = die("Whole", "2")
    assert (outcome["interrupted"], outcome["updates"], outcome["batches"]) == (True, 2, 2)
    assert [save["updates"] for save in outcome["saves"]] == [1]
    assert (work / "last.pt").exists()


def test_once_saved_is_later(die):
    outcome, _ = die("Whole", "2:saved")
    assert (outcome["interrupted"], outcome["updates"]) == (True, 2)
    assert [save["updates"] for save in outcome["saves"]] == [1, 2]


@pytest.mark.parametrize(("death", "code"), [("SIGTERM", -15), ("SIGKILL", -9)])
def test_a_signal_that_nobody_handles_ends_the_process(die, death, code):
    outcome, _ = die("Whole", "2", death)
    assert outcome["exit_code"] == code and "status" not in outcome


def test_sigint_is_an_exception(die):
    outcome, _ = die("Whole", "2", "SIGINT")
    assert outcome["error"]["type"] == "KeyboardInterrupt" and outcome["updates"] == 2


def test_a_kill_comes_at_the_very_byte(die):
    outcome, work = die("Whole", "2:save", "SIGKILL", file=0, byte=1000)
    assert outcome["exit_code"] == -25  # SIGXFSZ
    assert (work / "last.writing").stat().st_size == 1000
    assert (work / "last.pt").stat().st_size > 1000


def test_a_full_disk_fails_the_write(die):
    outcome, work = die("Whole", "2:save", "full-disk", file=0, byte=1000)
    assert outcome["status"] == "raised" and outcome["error"]["type"] in ("RuntimeError", "OSError")
    assert (work / "last.writing").stat().st_size <= 1000


def test_who_survives_a_full_disk_ends_at_the_next_update(die):
    outcome, _ = die("Carries", "2:save", "full-disk", file=0, byte=1000)
    assert (outcome["interrupted"], outcome["updates"]) == (True, 3)


def test_a_read_only_folder_refuses(die):
    outcome, work = die("Whole", "2:save", "read-only", file=0, byte=0)
    assert outcome["error"]["type"] == "PermissionError"
    assert [file.name for file in work.iterdir()] == ["last.pt"]


def test_a_signal_that_is_ignored_interrupts_nothing(die):
    outcome, _ = die("Deaf", "2", "SIGTERM")
    assert (outcome["status"], outcome["interrupted"], outcome["struck"]) == ("completed", False, True)


def test_sigint_ends_a_job_in_the_background_too(die):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome, _ = die("Whole", "2", "SIGINT")
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome["error"]["type"] == "KeyboardInterrupt"
