"""Workers run under one pinned environment, and none outlives what started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oracle import processes
from oracle.errors import OutputError
from reference_loop.recipe import from_dict, to_dict
from reference_loop.semantics import Semantics

TASK = """
import torch
from reference_loop.task import Task

def data():
    return [{"id": torch.tensor(i), "x": torch.full((2,), float(i))} for i in range(4)]

def loss(model, batch, reduction):
    return getattr(model(batch["x"]), reduction)()

task = Task(name="toy", model=lambda: torch.nn.Linear(2, 1), train_data=data, loss=loss)
"""

TRAINERS = """
import os, resource, signal, subprocess, sys, time

class Fills:
    def train(self, job):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        raise OSError("no space")

class Dies:
    def train(self, job):
        print("about to die", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

class Exits:
    def train(self, job):
        os._exit(5)

class Hangs:
    def train(self, job):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (job.workdir / "pids.tmp").write_text(f"{os.getpid()} {child.pid}")
        os.rename(job.workdir / "pids.tmp", job.workdir / "pids")
        time.sleep(600)

class LeavesAChild:
    def train(self, job):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (job.workdir / "pids").write_text(str(child.pid))
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """(class of TRAINERS) -> a spec that runs it."""
    place = tmp_path_factory.mktemp("processes")
    (place / "task.py").write_text(TASK)
    (place / "trainers.py").write_text(TRAINERS)
    recipe = from_dict({})

    def make(name):
        return {
            "task": str(place / "task.py"),
            "trainer": f"{place / 'trainers.py'}:{name}",
            "recipe": to_dict(recipe),
            "semantics": Semantics.of(recipe).flat(),
            "folder": str(place / name),
            "workdir": str(place / name / "work"),
            "digest": None,
        }

    return make


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid):
    """Whether a process ends within 10 seconds."""
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def wait_for(path):
    """The numbers in a file, once it is there."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.05)
    return [int(word) for word in path.read_text().split()]


def test_environment_is_pinned_and_free_of_launchers(monkeypatch):
    leftovers = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "ACCELERATE_USE_CPU", "TORCHELASTIC_RUN_ID"}
    for name in leftovers:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("FRANK", "kept")
    found = processes.pinned(threads=2)
    assert not leftovers & set(found)
    assert (found["CUDA_VISIBLE_DEVICES"], found["FRANK"]) == ("3", "kept")
    assert (found["PYTHONHASHSEED"], found["OMP_NUM_THREADS"], found["HF_HUB_OFFLINE"]) == ("0", "2", "1")


def test_a_layer_comes_first_on_the_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert processes.pinned(1, Path("/layer"))["PYTHONPATH"] == "/layer:/theirs"
    monkeypatch.delenv("PYTHONPATH")
    assert processes.pinned(1, Path("/layer"))["PYTHONPATH"] == "/layer"


def test_several_endings_at_once_are_told_apart(spec):
    names = ("Dies", "Exits", "Hangs", "LeavesAChild")
    with ThreadPoolExecutor(1) as pool:  # and workers outlive the thread that started them
        runs = dict(zip(names, pool.map(lambda name: processes.start(spec(name)), names), strict=True))
    children = [wait_for(runs[name].folder / "work" / "pids") for name in ("Hangs", "LeavesAChild")]
    endings = {name: run.wait(60 if name != "Hangs" else 0.5) for name, run in runs.items()}

    died = endings["Dies"]
    assert (died.status, died.signal, died.exit_code) == ("killed", "SIGSEGV", -signal.SIGSEGV)
    assert died.last_words.startswith("about to die")
    assert "Fatal Python error: Segmentation fault" in died.last_words
    exited = endings["Exits"]
    assert (exited.status, exited.signal, exited.exit_code) == ("killed", None, 5)
    assert exited.detail == "the process ended itself with exit status 5"
    hung = endings["Hangs"]
    assert (hung.status, hung.detail, hung.outcome) == ("hung", "no end after 0.5 s", None)
    assert "in train" in hung.last_words  # where it hung
    assert endings["LeavesAChild"].status == "completed"
    assert all(gone(pid) for pids in children for pid in pids)


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_its_parent(spec, root, ended_by):
    place = f"{spec('Hangs')['folder']}-{ended_by.name}"
    asked = spec("Hangs") | {"folder": place, "workdir": f"{place}/work"}
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a background job ignores it
    code = f"{hears}; from oracle import processes; processes.start({asked!r}).wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=root, stderr=subprocess.DEVNULL)
    worker, grandchild = wait_for(Path(place) / "work" / "pids")
    assert alive(worker) and alive(grandchild)
    parent.send_signal(ended_by)
    parent.wait()
    assert gone(worker) and gone(grandchild)


def test_a_folder_that_cannot_be_made_is_one_message(spec):
    with pytest.raises(OutputError, match="cannot write /dev/null/run: Not a directory: choose another folder"):
        processes.start(spec("Exits") | {"folder": "/dev/null/run"})


def test_a_run_on_a_full_disk_says_so_though_it_cannot_write_it(spec):
    with pytest.raises(OutputError, match=r"could not write what it came to \(.* free in .*\): free space, or choose"):
        processes.start(spec("Fills")).wait(60)
