"""A rank that dies, raises, ends early or hangs is named, the others are stopped, and all of it takes bounded time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oracle import ranks
from oracle.check import Request, check
from oracle.recipes import load_recipe
from oracle.replays import Server
from reference_loop.recipe import from_dict

HANGS = "import time; time.sleep(600)"
RAISES = "say('raised', 'RuntimeError'); sys.exit(1)"
COMPLETES = "say('completed', None)"
DIES = "os.kill(os.getpid(), 9)"
# What a rank does before it does one of these: it says where it is, as a worker does.
RANK = """
import json, os, sys, time
folder, rank, update = sys.argv[1], sys.argv[2], int(sys.argv[3])
open(f"{folder}/place.{rank}", "w").write(json.dumps([[update, 0], f"update {update}, consume"]))
open(f"{folder}/pid.{rank}", "w").write(str(os.getpid()))
def say(status, error):
    told = error and {"type": error, "message": f"of rank {rank}", "traceback": ""}
    open(f"{folder}/outcome.{rank}.json", "w").write(json.dumps({"status": status, "error": told}))
"""
SLACK = 15.0  # seconds in which processes start on a busy machine


@pytest.fixture
def supervised(tmp_path):
    """Run a piece of Python on each rank and watch it; all of them must be gone afterwards."""
    handler = signal.getsignal(signal.SIGUSR1)
    running = {}

    def supervised(*codes, updates=(), timeout=None):
        for rank, code in enumerate(codes):
            for stream in ("stdout", "stderr"):
                (tmp_path / f"{stream}.{rank}.txt").write_bytes(b"")
            update = str(updates[rank] if updates else 0)
            running[rank] = subprocess.Popen([sys.executable, "-c", RANK + code, str(tmp_path), str(rank), update])
        while not all((tmp_path / f"pid.{rank}").exists() for rank in running):
            time.sleep(0.01)
        return ranks.supervise(running, tmp_path, timeout)

    yield supervised
    signal.signal(signal.SIGUSR1, handler)
    for process in running.values():
        process.wait(SLACK)


def test_ranks_that_complete_have_the_first_ones_outcome(supervised):
    assert supervised(COMPLETES, COMPLETES) == {"status": "completed", "error": None}


def test_a_killed_rank_is_named_and_the_others_are_stopped(supervised):
    started = time.monotonic()
    outcome = supervised(HANGS, DIES, HANGS, updates=(4, 3, 4))
    assert (outcome["status"], outcome["signal"], outcome["rank"]) == ("killed", "SIGKILL", 1)
    assert outcome["at"] == "update 3, consume"
    assert outcome["error"]["message"] == "rank 1 was ended by SIGKILL"
    assert time.monotonic() - started < ranks.GRACE + SLACK


def test_a_rank_that_raises_is_named(supervised):
    outcome = supervised(HANGS, RAISES)
    assert (outcome["status"], outcome["rank"], outcome["at"]) == ("raised", 1, "update 0, consume")
    assert outcome["error"]["message"] == "of rank 1"


def test_of_two_that_raise_the_first_is_named(supervised):
    outcome = supervised(f"time.sleep(0.7); {RAISES}", RAISES)
    assert outcome["rank"] == 1


def test_one_that_is_killed_is_named_before_one_that_raises_because_of_it(supervised):
    outcome = supervised(RAISES, f"time.sleep(0.3); {DIES}")
    assert (outcome["status"], outcome["rank"]) == ("killed", 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_leaves_without_a_word_is_named(supervised, rank):
    codes = [COMPLETES, COMPLETES]
    codes[rank] = "os._exit(0)"
    outcome = supervised(*codes)
    assert (outcome["status"], outcome["signal"], outcome["rank"]) == ("killed", None, rank)
    assert outcome["error"]["message"] == f"rank {rank} was ended by exit status 0"


def test_a_rank_that_waits_for_one_that_ended_early_is_stopped_and_named(supervised):
    outcome = supervised(COMPLETES, HANGS, updates=(4, 3), timeout=0.5)
    assert (outcome["status"], outcome["rank"], outcome["at"]) == ("hung", 1, "update 3, consume")


def test_of_ranks_that_hang_the_one_furthest_back_is_named(supervised):
    started = time.monotonic()
    outcome = supervised(HANGS, HANGS, HANGS, updates=(5, 5, 4), timeout=0.5)
    assert (outcome["status"], outcome["rank"]) == ("hung", 2)
    said = outcome["error"]["message"]
    assert said.startswith("rank 2 was last seen at update 4, consume; rank 0 at update 5")
    assert time.monotonic() - started < SLACK


def test_time_is_over_when_the_parent_says_so(supervised, tmp_path):
    parent = os.getpid()
    outcome = supervised(f"time.sleep(0.5); os.kill({parent}, {int(signal.SIGUSR1)}); {HANGS}", HANGS)
    assert outcome["status"] == "hung"


def test_a_rank_has_what_torchrun_gives_it():
    told = ranks.environment(1, 3, 4321)
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) == ("1", "1", "3")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.1", "4321")


def test_a_place_is_read_while_its_rank_lives(tmp_path):
    whereabouts = ranks.Whereabouts(tmp_path, 0)
    assert ranks._place(tmp_path, 0) == ([], "no step yet")
    whereabouts.note((2, 0), 2, -1, "consume")
    assert ranks._place(tmp_path, 0) == ([2, 0], "update 2, consume")
    whereabouts.note((3, 1), 3, 1, "forward")
    assert ranks._place(tmp_path, 0) == ([3, 1], "update 3, micro 1, forward")


# A whole check

TRAINER = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Trainer:
    def train(self, job):
        open(os.environ["PIDS"] + f"/{os.getpid()}", "w").close()
        dist.init_process_group("gloo")
        model = job.model()
        replica, optimizer = DistributedDataParallel(model), job.optimizer(model)
        for update, batch in enumerate(job.loader()):
            job.loss(replica, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.rank == 1 and update == 1:
                FAULT
"""


@pytest.mark.parametrize(
    ("fault", "status"),
    [("os.kill(os.getpid(), 9)", "killed"), ("time.sleep(600)", "timed_out")],
)
def test_a_check_names_the_rank_and_leaves_no_process(tmp_path, monkeypatch, fault, status):
    pids, file = tmp_path / "pids", tmp_path / "trainer.py"
    pids.mkdir()
    file.write_text(TRAINER.replace("FAULT", fault))
    monkeypatch.setenv("PIDS", str(pids))
    recipe = load_recipe("ragged_tail", None, ["parallel.ranks=2", "accumulation=1"])
    server = Server(tmp_path / "server")
    try:
        request = Request(task="ragged_tail", trainer=f"{file}:Trainer", recipe=recipe, timeout=10)
        result = check(request, server=server)
    finally:
        server.close()
    outcome = result.candidate_outcome
    assert result.verdict == "not_comparable", "what a stopped rank did not record is no difference"
    assert outcome.status == status, outcome
    assert outcome.rank == 1
    assert outcome.at.startswith("update 1")
    started = [int(path.name) for path in pids.iterdir()]
    assert len(started) >= 2
    deadline = time.monotonic() + SLACK
    while any(alive(pid) for pid in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in started if alive(pid)] == []


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_outcome_of_a_command_names_the_rank(tmp_path):
    """Started as a program, which is how a run without a server is."""
    worker = tmp_path / "oracle" / "worker.py"
    worker.parent.mkdir()
    worker.write_text("import os, sys, time\nos.environ['RANK'] == '1' and os.kill(os.getpid(), 9)\ntime.sleep(600)\n")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"folder": str(tmp_path), "script": str(worker), "ranks": 2, "launch": None}))
    code = subprocess.run([sys.executable, ranks.__file__, str(spec)], timeout=60, check=False).returncode
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert (code, outcome["status"], outcome["rank"]) == (1, "killed", 1)


# Data that can only be iterated

STREAM = """
import torch
from torch import nn
from torch.utils.data import IterableDataset

from reference_loop.task import Task


def model():
    return nn.Linear(3, 1)


class Stream(IterableDataset):
    def __iter__(self):
        x = torch.randn(11, 3, generator=torch.Generator().manual_seed(1))
        for index, row in enumerate(x):
            yield {"id": torch.tensor(index), "x": row, "y": row.sum().reshape(1)}


def loss(model, batch, reduction):
    return nn.functional.mse_loss(model(batch["x"]), batch["y"], reduction=reduction)


task = Task(name="stream", model=model, train_data=Stream, loss=loss)
"""
READS = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Trainer:
    shard = True
    def train(self, job):
        dist.init_process_group("gloo")
        model = job.model()
        replica, optimizer = DistributedDataParallel(model), job.optimizer(model)
        for epoch in range(job.recipe.epochs):
            for batch in job.loader(shard=self.shard):
                job.loss(replica, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
class ReadsAll(Trainer):
    shard = False
"""


@pytest.mark.parametrize(
    ("trainer", "causes"), [("Trainer", []), ("ReadsAll", [("data.shard", "replicate", "confirmed")])]
)
def test_a_stream_is_dealt_to_ranks_as_it_is_read(tmp_path, trainer, causes):
    """11 samples, so that one of two ranks is a sample short."""
    task, file = tmp_path / "stream.py", tmp_path / "trainer.py"
    task.write_text(STREAM)
    file.write_text(READS)
    asked = {"epochs": 2, "batch_size": 2, "optimizer": {"name": "sgd", "lr": 0.1}}
    recipe = from_dict({**asked, "parallel": {"ranks": 2}})
    server = Server(tmp_path / "server")
    try:
        result = check(Request(task=str(task), trainer=f"{file}:{trainer}", recipe=recipe, timeout=60), server=server)
    finally:
        server.close()
    assert result.verdict == ("diverged" if causes else "match")
    assert [(cause.knob, cause.candidate, cause.status) for cause in result.causes] == causes
