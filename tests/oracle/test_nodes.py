"""Ranks that a launcher started on several machines: the first leads, the others follow, and all end together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from oracle import nodes, ranks
from oracle.cli import main
from oracle.environment import prepare
from oracle.errors import OracleError
from oracle.tasks import fixtures

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TRAINER = """
import itertools
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Trainer:
    def train(self, job):
        dist.init_process_group("gloo")
        model = job.model()
        replica, optimizer = DistributedDataParallel(model), job.optimizer(model)
        batches = (batch for epoch in itertools.count() for batch in job.loader())
        for update, batch in enumerate(batches):
            if update == 3 and job.rank == 1:
                FAULT
            job.loss(replica, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.total_updates == update + 1:
                return
"""
RECIPE = ("--set", "parallel.ranks=2", "--set", "accumulation=1")


@pytest.fixture
def launched(monkeypatch):
    """Set what a launcher sets."""

    def launched(**variables):
        for name in nodes.VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return launched


def test_without_a_launcher_all_ranks_run_here(launched, tmp_path):
    launched()
    assert nodes.launched(2, tmp_path) is None
    launched(RANK="1", WORLD_SIZE="4", MASTER_ADDR="a")
    assert nodes.launched(1, tmp_path) is None, "left behind by a launcher of something else"
    launched(RANK="0", WORLD_SIZE="1", MASTER_ADDR="a")
    assert nodes.launched(2, tmp_path) is None


def test_a_launcher_says_who_this_process_is(launched, tmp_path):
    launched(RANK="1", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="first", MASTER_PORT="1", TORCHELASTIC_RUN_ID="x")
    found = nodes.launched(2, tmp_path)
    assert found.rank == 1
    assert found.variables == {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "first"}


@pytest.mark.parametrize(
    ("count", "variables", "keep", "says"),
    [
        (2, {"WORLD_SIZE": "3", "MASTER_ADDR": "a"}, True, "(WORLD_SIZE), and the recipe asks for 2 ranks"),
        (2, {"WORLD_SIZE": "2"}, True, "set it to the machine of rank 0"),
        (2, {"WORLD_SIZE": "2", "MASTER_ADDR": "a"}, False, "name a new one with --keep"),
    ],
)
def test_what_cannot_be_a_rank_is_refused(launched, tmp_path, count, variables, keep, says):
    launched(RANK="1", **variables)
    with pytest.raises(OracleError) as refused:
        nodes.launched(count, tmp_path if keep else None)
    assert says in str(refused.value)


def test_a_remote_rank_is_alive_while_it_tells_so(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "PAUSE", 0.0)
    remote = ranks.Remote(tmp_path, 1)
    assert remote.poll() is None, "that machine is making ready"
    monkeypatch.setattr(ranks, "SILENCE", 0.05)
    (tmp_path / "remote.1").write_text(json.dumps({"beat": 1, "code": None}))
    assert remote.poll() is None
    (tmp_path / "remote.1").write_text(json.dumps({"beat": 2, "code": None}))
    assert remote.poll() is None
    time.sleep(0.1)
    assert remote.poll() == -9, "no sign of life"


def test_a_followers_process_is_ended_with_the_leaders(tmp_path, monkeypatch):
    """A worker that never ends, and a leader that gives the run up."""
    monkeypatch.setattr(nodes, "PAUSE", 0.02)
    worker = tmp_path / "worker.py"
    worker.write_text("import os, sys, time\nprint(os.environ['RANK'], os.getpid(), flush=True)\ntime.sleep(600)\n")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"folder": str(tmp_path), "script": str(worker), "ranks": 2}))
    launch = nodes.Launch(1, {"RANK": "1"})
    follower = threading.Thread(target=nodes.follow, args=(launch, tmp_path, prepare(()), 1))
    follower.start()
    with nodes.leading(nodes.Launch(0, {"RANK": "0"}), tmp_path) as led:
        ranks.Remote(tmp_path, 1)
        ranks.announce(Path(led["calls"]), {"spec": str(spec), "port": "1"})
        said = _wait_for(lambda: (tmp_path / "stdout.1.txt").exists() and (tmp_path / "stdout.1.txt").read_text())
    follower.join(20)
    assert not follower.is_alive()
    rank, pid = said.split()
    assert rank == "1" and not Path(f"/proc/{pid}").exists()


def test_followers_end_when_the_leader_fails_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "PAUSE", 0.02)
    (tmp_path / nodes.CALLS).touch()
    follower = threading.Thread(target=nodes.follow, args=(nodes.Launch(1, {}), tmp_path, prepare(()), 1))
    follower.start()
    time.sleep(0.1)
    (tmp_path / nodes.CALLS).unlink()  # as a check that fails removes what it began
    follower.join(20)
    assert not follower.is_alive()


def _wait_for(condition):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def torchrun(folder, root, *command):
    """A command under torchrun on two machines, which are two agents of this one; returns the exit codes."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    started = []
    for node in (1, 0):
        where = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(node)]
        where += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        with open(folder / f"node{node}.txt", "wb") as log:
            run = [*TORCHRUN, *where, "-m", "oracle", *map(str, command)]
            environment = {name: value for name, value in os.environ.items() if name not in nodes.VARIABLES}
            started.append(subprocess.Popen(run, cwd=root, stdout=log, stderr=log, env=environment))
    return [process.wait(300) for process in reversed(started)]


def test_what_forks_all_ranks_here_is_refused_under_a_launcher(launched, tmp_path, capsys):
    launched(RANK="0", WORLD_SIZE="2", MASTER_ADDR="a")
    command = ["resume", "regression", "--trainer", f"{fixtures()}/trainers/loop.py:Loop", "--cut", "2", *RECIPE]
    assert main([*command, "--keep", str(tmp_path / "kept"), "--warm"]) == 2
    assert "leave them out under a launcher" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
def test_the_same_command_under_torchrun_on_two_nodes(tmp_path, root):
    trainer, kept, output = tmp_path / "trainer.py", tmp_path / "kept", tmp_path / "result.json"
    trainer.write_text(TRAINER.replace("FAULT", "pass"))
    command = ["check", "regression", "--trainer", f"{trainer}:Trainer", *RECIPE, "--keep", kept, "--json", output]
    assert torchrun(tmp_path, root, *command) == [0, 0], (tmp_path / "node0.txt").read_text()
    result = json.loads(output.read_text())
    assert result["verdict"] == "match" and result["self_check"]["identical"]
    assert result["compared"]["updates"] == 16
    assert {"trace.db", "trace.1.db"} <= {path.name for path in (kept / "candidate" / "first").iterdir()}
    assert "MATCH" not in (tmp_path / "node1.txt").read_text(), "one report"


@pytest.mark.slow
def test_a_rank_that_dies_on_another_node_is_named(tmp_path, root):
    trainer, output = tmp_path / "trainer.py", tmp_path / "result.json"
    trainer.write_text(TRAINER.replace("FAULT", "os.kill(os.getpid(), 9)"))
    command = ["check", "regression", "--trainer", f"{trainer}:Trainer", *RECIPE]
    torchrun(tmp_path, root, *command, "--keep", tmp_path / "kept", "--json", output)
    result = json.loads(output.read_text())
    assert result["verdict"] == "not_comparable"
    outcome = result["candidate_outcome"]
    assert (outcome["status"], outcome["rank"], outcome["at"]) == ("killed", 1, "update 2, update")
