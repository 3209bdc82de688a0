"""A resumed reference run is the uninterrupted one, bit for bit; with a part left out it is not."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch

from oracle.tasks import load_task
from reference_loop import checkpoint, interpreter
from reference_loop.loader import count_samples
from reference_loop.operations import Cursor, Forward
from reference_loop.plan import plan
from reference_loop.recipe import from_dict
from reference_loop.schedules import Course
from reference_loop.semantics import RESUME_PARTS, Semantics
from reference_loop.state import State

RECIPE = from_dict({
    "epochs": 2, "batch_size": 2, "accumulation": 2, "shuffle": True, "optimizer": {"name": "adamw", "lr": 0.02},
    "schedule": {"name": "linear", "warmup": 2}, "checkpoint": {"every": 1}, "ema": {"decay": 0.9},
    "precision": {"dtype": "float16"}, "scaler": {"init_scale": 2.0**16, "growth_interval": 2},
})  # fmt: skip


def run(workdir, *, cut=None, resume_from=None, missing=""):
    """Every update's parameters and averages, by update."""
    task, s = load_task("decoder"), Semantics.of(RECIPE).with_("resume.missing", missing)
    folder = resume_from / f"checkpoint-{cut}" if resume_from else None
    state = State(task, RECIPE, drop_last=False, workdir=workdir, resume_from=folder)
    at = None
    if folder is not None:
        saved = checkpoint.load(folder)
        at = Cursor(saved["counter"]["updates"], *saved["cursor"])
    rows = {}

    def observe(address, value):
        if address.moment == "update" and address.kind in ("parameter", "ema", "optimizer_state", "scaler"):
            rows.setdefault(address.update, {})[address.kind, address.name] = value.clone()

    interpreter.run(plan(RECIPE, s, count_samples(state.loader.data), at), state, observe)
    return rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, run(workdir)


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(whole, tmp_path, cut):
    workdir, rows = whole
    resumed = run(tmp_path, cut=cut, resume_from=workdir)
    assert sorted(resumed) == [update for update in sorted(rows) if update >= cut]
    assert all(same(rows[update], resumed[update]) for update in resumed)


@pytest.mark.parametrize("part", [p for p in RESUME_PARTS if p != "accumulated_gradient"])
def test_a_part_left_out_shows(whole, tmp_path, part):
    workdir, rows = whole
    cut = 5 if part in ("order", "ema") else 2  # in the second epoch, after the overflows
    resumed = run(tmp_path, cut=cut, resume_from=workdir, missing=part)
    left = [update for update in sorted(rows) if update >= cut]
    assert sorted(resumed) != left or not all(same(rows[update], resumed[update]) for update in left)


@pytest.mark.parametrize("normalise", ["micro_mean", "unit_mean"])
@pytest.mark.parametrize("missing", ["", "accumulated_gradient"])
def test_a_run_resumed_inside_a_window_needs_its_gradient(tmp_path, normalise, missing):
    recipe = from_dict({"updates": 3, "batch_size": 2, "accumulation": 3, "shuffle": True, "log": {"every": 1}})
    s = Semantics.of(recipe).with_("accumulation.normalise", normalise)
    rows = []

    def train(resume_from=None, stop=None, semantics=s):
        state = State(load_task("decoder"), recipe, drop_last=False, resume_from=resume_from)
        at = Cursor(1, *checkpoint.load(resume_from)["cursor"], micro=2) if resume_from else None
        seen = {}
        for operation in plan(recipe, semantics, count_samples(state.loader.data), at):
            if stop is not None and isinstance(operation, Forward) and (operation.update, operation.micro) == stop:
                checkpoint.save(state, tmp_path / "saved", 0)
                return
            for address, value in operation.do(state):
                if address.moment in ("batch", "update", "log") and address.update >= 1:
                    seen[address] = value.clone() if isinstance(value, torch.Tensor) else value
        rows.append(seen)

    train()
    train(stop=(1, 2))
    train(resume_from=tmp_path / "saved", semantics=s.with_("resume.missing", missing))
    whole, resumed = rows
    left = {address for address in whole if address >= (1, 2) or address.micro == -1}
    assert set(resumed) == left
    equal = [
        torch.equal(whole[a], resumed[a]) if isinstance(whole[a], torch.Tensor) else whole[a] == resumed[a]
        for a in left
    ]
    assert all(equal) is (missing == "")


def begun(seed):
    """The state that a run with a seed begins with."""
    state = State(load_task("ragged_tail"), from_dict({"updates": 1, "seed": seed}), drop_last=False)
    state.begin("all", Course(1), "float32")
    return state


def test_a_save_that_is_killed_at_any_byte_leaves_a_whole_checkpoint(tmp_path):
    first, second = begun(0), begun(1)
    checkpoint.save(first, tmp_path / "saved", 0)
    size = (tmp_path / "saved" / checkpoint.FILE).stat().st_size
    for byte in (size * twelfth // 12 for twelfth in range(12)):  # a child's save is some bytes shorter or longer
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (byte, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            checkpoint.save(second, tmp_path / "saved", 0)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
        found = checkpoint.load(tmp_path / "saved")["parameter"]["0.weight"]
        assert torch.equal(found, first.parameters["0.weight"])


CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def saved_until(step, state, folder, synced):
    """Save in a child that is killed before the `step`-th change of the folder; returns whether it came to it.

    synced: a file into which the child writes what it has brought to the disk, a path a line.
    """
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    count, sync = 0, os.fsync
    log = open(synced, "a", buffering=1)  # noqa: SIM115, the child is killed

    def changes(event, arguments):
        nonlocal count
        if event in CHANGES and str(folder.parent) in str(arguments[0]):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    def fsync(descriptor):
        sync(descriptor)
        log.write(os.readlink(f"/proc/self/fd/{descriptor}") + "\n")

    sys.addaudithook(changes)
    os.fsync = fsync
    checkpoint.save(state, folder, 0)
    os._exit(0)


@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_save_that_stops_between_any_two_changes_leaves_a_whole_checkpoint(tmp_path, power):
    first, second, found = begun(0), begun(1), []
    for step in itertools.count(1):
        folder, synced = tmp_path / str(step) / "saved", tmp_path / f"synced{step}"
        checkpoint.save(first, folder, 0)
        killed = saved_until(step, second, folder, synced)
        if power == "fails":  # what nobody waited for is not on the disk; an earlier save's is
            there = {Path(line).name for line in synced.read_text().splitlines()}
            for file in folder.with_name("saved.writing").glob("*"):
                if file.name not in there:
                    os.truncate(file, 0)
        weight = checkpoint.load(folder)["parameter"]["0.weight"]
        found.append([torch.equal(weight, state.parameters["0.weight"]) for state in (first, second)])
        assert any(found[-1])
        checkpoint.save(second, folder, 0)  # what was left behind is in nobody's way
        assert torch.equal(checkpoint.load(folder)["parameter"]["0.weight"], second.parameters["0.weight"])
        assert [path.name for path in folder.parent.iterdir()] == ["saved"]
        if not killed:
            break
    assert step > 8 and found[0] == [True, False] and found[-1] == [False, True]
    assert sorted(found, reverse=True) == found  # the older one, up to the rename; from there on the newer one


def test_everything_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    order, sync, rename = [], os.fsync, Path.rename

    def fsync(descriptor):
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def renamed(path, target):
        order.append(f"{path.name} becomes {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", renamed)
    for seed in (0, 1):
        checkpoint.save(begun(seed), tmp_path / "saved", 0)
    written = ["state.pt", "state.blake2b", "saved.writing"]
    named = ["saved.writing becomes saved", tmp_path.name]
    assert order == [*written, *named, *written, "saved becomes saved.before", *named]


def test_one_bit_that_turned_is_named(tmp_path):
    checkpoint.save(begun(0), tmp_path / "saved", 0)
    file = tmp_path / "saved" / checkpoint.FILE
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match="its digest is another"):
        checkpoint.load(tmp_path / "saved")


def test_a_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match=r"holds no state\.pt"):
        checkpoint.load(tmp_path)
    (tmp_path / "state.pt").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(checkpoint.CheckpointError, match="cannot be read"):
        checkpoint.load(tmp_path)
