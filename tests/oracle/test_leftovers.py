"""A check that cannot end leaves nothing: no process, no folder, no half-written file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oracle.check import Request, check
from oracle.cli import main
from oracle.errors import OracleError
from oracle.replays import Server
from reference_loop.recipe import load

HANGS = """
import os, subprocess, sys, time
from pathlib import Path

class Trainer:
    def train(self, job):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(Path(__file__).with_name("found.txt"), "a") as file:
            file.write(f"{os.getpid()} {child.pid} {job.workdir}\\n")
        time.sleep(600)
"""


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_check_that_is_ended_leaves_no_process_and_no_folder(number, code, tmp_path, root):
    (tmp_path / "trainer.py").write_text(HANGS)
    found = tmp_path / "found.txt"
    arguments = ["check", "regression", "--trainer", f"{tmp_path / 'trainer.py'}:Trainer"]
    code_of_it = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.argv[1:] = {arguments}; from oracle.cli import main; sys.exit(main())"
    )
    running = subprocess.Popen([sys.executable, "-c", code_of_it], cwd=root, stderr=subprocess.DEVNULL)
    assert eventually(lambda: found.exists() and found.read_text().count("\n") == 2)
    running.send_signal(number)
    assert running.wait(30) == code
    lines = [line.split() for line in found.read_text().splitlines()]
    processes = [int(process) for *both, _ in lines for process in both]
    assert eventually(lambda: not any(map(alive, processes)), 10)
    folders = [Path(workdir).parents[2] for *_, workdir in lines]
    assert folders[0].name.startswith("oracle-")
    assert eventually(lambda: not any(folder.exists() for folder in folders), 10)


@pytest.mark.parametrize("made_before", [False, True])
def test_a_folder_to_keep_is_empty_again_after_an_error(made_before, tmp_path):
    folder = tmp_path / "runs" / "kept"
    if made_before:
        folder.mkdir(parents=True)
    (tmp_path / "task.py").write_text("1 / 0")
    request = Request(
        task=str(tmp_path / "task.py"), trainer="fixtures/trainers/healthy.py:Healthy", recipe=load(None), folder=folder
    )
    server = Server(tmp_path / "server")
    try:
        with pytest.raises(OracleError, match="ZeroDivisionError"):
            check(request, server=server)
    finally:
        server.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("", "cannot write '': it has no name"),
        ("{}", "it is a folder: name a file in a folder that can be written"),
        ("{}/none/result", "none is no folder"),
        ("/proc/result", "/proc: No such file or directory"),
    ],
)
@pytest.mark.parametrize("option", ["--json", "--junit", "--html", "--markdown"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(option, file, words, tmp_path, capsys):
    place = file.format(tmp_path)
    assert main(["check", "regression", "--trainer", "none.py:T", option, place]) == 2
    assert words in capsys.readouterr().err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("device", ["gpu", "meta"])
def test_a_device_that_torch_does_not_have_is_refused(device):
    trainer = "fixtures/trainers/healthy.py:Healthy"
    request = Request(task="regression", trainer=trainer, recipe=load(None), device=device)
    with pytest.raises(OracleError, match=f"--device {device}: it cannot be used here: .*: choose another"):
        check(request)
