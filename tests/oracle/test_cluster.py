"""Work that is spread comes to the same wherever it is done, and leaves nothing behind."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from oracle import cluster, environment, zoo
from oracle.cli import main
from oracle.errors import EnvironmentRefused, OracleError

HERE = Path(__file__).parent
NAMES = ("a_undivided", "b_drops_the_tail", "r_reduces_the_first_micro", "loop")


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(true, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


@pytest.fixture
def pieces(monkeypatch):
    """The module of pieces, where a worker finds it too."""
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("pieces")


def test_answers_come_in_the_order_of_the_items() -> None:
    assert list(cluster.in_order([(2, "c"), (0, "a"), (1, "b"), (3, "d")])) == ["a", "b", "c", "d"]
    answers = cluster.in_order(iter([(0, "a"), (2, "c")]))
    assert next(answers) == "a"  # without waiting for the others
    assert list(answers) == []


def test_work_is_spread_over_processes_that_are_gone_afterwards(pieces) -> None:
    assert dict(cluster.spread(pieces.square, range(5), workers=2)) == {n: n * n for n in range(5)}
    assert list(cluster.spread(pieces.square, ())) == []
    assert multiprocessing.active_children() == []


def test_an_error_ends_the_other_workers_at_once(pieces) -> None:
    with pytest.raises(OracleError, match="one is refused"):
        list(cluster.spread(pieces.refuse, range(3), workers=3))
    assert eventually(lambda: multiprocessing.active_children() == [], 5)


def test_who_stops_listening_ends_the_workers(pieces) -> None:
    answers = cluster.spread(pieces.refuse, (0, 0), workers=2)
    with pytest.raises(OracleError):
        next(cluster.spread(pieces.refuse, (1,)))
    answers.close()
    assert eventually(lambda: multiprocessing.active_children() == [], 5)


def test_a_worker_that_ends_without_an_answer_is_no_fault_of_ours(pieces) -> None:
    with pytest.raises(OracleError, match="a worker process ended without an answer"):
        list(cluster.spread(pieces.die, range(2), workers=1))


def test_a_worker_keeps_its_server_until_another_environment_is_asked_for(pieces) -> None:
    asked = [(), (), ("json",), ()]
    found = [answer for _, answer in sorted(cluster.spread(pieces.serve, asked, workers=1))]
    servers = [server for server, _ in found]
    assert servers[0] == servers[1] and len(set(servers)) == 3
    assert len({worker for _, worker in found}) == 1
    assert eventually(lambda: not any(map(alive, servers)), 10)


def test_without_ray_the_error_says_what_to_do(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["zoo", "a_undivided", "--cluster", "ray"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "error: --cluster ray: this environment has no ray: pip install 'trainer-oracle[ray]', "
        "or leave --cluster ray out\n"
    )


# On a Ray of this machine


@pytest.fixture(scope="module")
def with_ray(root):
    """An environment in which ray is installed, and our source found."""
    try:
        layer = environment.prepare(["ray==2.60.0"]).layer
    except EnvironmentRefused as error:
        pytest.skip(f"ray is not installed: {error}")
    path = os.pathsep.join(filter(None, [str(layer or ""), str(root), str(HERE), os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "PYTHONPATH": path}


def run(code: str, where: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import pieces\nfrom oracle import cluster\n{code}"]
    return subprocess.run(command, env=where, cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.mark.trainers
def test_the_zoo_comes_to_the_same_on_ray(with_ray, root, tmp_path) -> None:
    file = tmp_path / "zoo.json"
    command = [sys.executable, "-m", "oracle", "zoo", *NAMES, "--cluster", "ray", "--json", str(file)]
    done = subprocess.run(command, env=with_ray, cwd=root, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    here = zoo.specimens(zoo.folder()) + zoo.specimens(zoo.folder() / "healthy")
    chosen = [one for one in here if one.name.startswith(NAMES)]
    ours = json.loads(json.dumps(zoo.plain(zoo.run(chosen))))
    theirs = json.loads(file.read_text())["outcomes"]
    assert [{**one, "seconds": 0} for one in theirs] == [{**one, "seconds": 0} for one in ours]
    assert len(ours) >= len(NAMES)


@pytest.mark.trainers
def test_trainers_are_evaluated_alike_on_ray(with_ray, root, tmp_path) -> None:
    words = ["--trainer", "accelerate", "--trainer", f"{root}/fixtures/trainers/loop.py:Loop", "--scenario", "research"]
    found = []
    for where in ("ray", "local"):
        command = [sys.executable, "-m", "oracle", "evaluate", *words, "--dimensions", "functional", "--budget", "0.4"]
        command += ["-o", where, "--cluster", where, "--json", f"{where}.json"]
        done = subprocess.run(command, env=with_ray, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 3, done.stdout + done.stderr  # the budget leaves out what decides
        assert (tmp_path / where / "accelerate" / "archive.json").exists()
        found.append([(one["trainer"], one["rows"]) for one in json.loads((tmp_path / f"{where}.json").read_text())])
    assert found[0] == found[1] and all(rows for _, rows in found[0])


@pytest.mark.trainers
def test_what_is_timed_has_a_node_to_itself(with_ray, tmp_path) -> None:
    code = "print(sorted(cluster.spread(pieces.timed, range(4), where='ray', workers=2, whole_nodes={})))"
    alone, together = (run(code.format(whole), with_ray, tmp_path) for whole in (True, False))
    assert alone.returncode == together.returncode == 0, alone.stderr + together.stderr

    def overlap(done: subprocess.CompletedProcess[str]) -> bool:
        spans = sorted(span for _, span in eval(done.stdout))
        return any(second[0] < first[1] for first, second in pairwise(spans))

    assert not overlap(alone) and overlap(together)


@pytest.mark.trainers
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("pieces.refuse, (1,)", "one is refused"),
        ("pieces.die, (1,)", "--cluster ray: a worker ended without an answer"),
    ],
)
def test_an_error_on_ray_is_ours(call, words, with_ray, tmp_path) -> None:
    code = (
        "from oracle.errors import OracleError\n"
        f"try: list(cluster.spread({call}, where='ray'))\nexcept OracleError as error: print(error)"
    )
    done = run(code, with_ray, tmp_path)
    assert words in done.stdout.splitlines()[-1], done.stdout + done.stderr


@pytest.mark.trainers
def test_a_cluster_that_does_not_answer_is_named(with_ray, root) -> None:
    command = [sys.executable, "-m", "oracle", "zoo", "a_undivided", "--cluster", "ray"]
    where = {**with_ray, "RAY_ADDRESS": "auto"}
    done = subprocess.run(command, env=where, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "error: --cluster ray: RAY_ADDRESS is auto, and no cluster answers there" in done.stderr


@pytest.mark.trainers
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_work_on_ray_that_is_ended_leaves_no_process_and_no_folder(number, with_ray, tmp_path) -> None:
    said = tmp_path / "said.txt"
    code = (
        "import signal, sys, pieces\nfrom oracle import cluster\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"list(cluster.spread(pieces.stay, [{str(said)!r}] * 2, where='ray', workers=2))"
    )
    before = folders()
    command = [sys.executable, "-c", code]
    running = subprocess.Popen(command, env=with_ray, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert eventually(lambda: said.exists() and said.read_text().count("\n") == 2, 120)
        lines = [line.split() for line in said.read_text().splitlines()]
        processes = [int(process) for *both, _ in lines for process in both]
        rays = [one for one in folders() - before if any(one.glob("session_*"))]
        assert rays
        os.kill(running.pid, number)
        assert running.wait(60) != 0
        assert eventually(lambda: not any(map(alive, processes)), 30)
        assert eventually(lambda: not any(Path(folder).exists() for *_, folder in lines), 30)
        assert eventually(lambda: not any(map(of_ray, rays)), 30), [*filter(of_ray, rays)]
        assert eventually(lambda: not any(folder.exists() for folder in rays), 30)
    finally:
        running.kill()


def folders() -> set[Path]:
    """The folders that are there for this machine's runs."""
    return {one for place in ("/dev/shm", "/tmp") for one in Path(place).glob("oracle-*")}


def of_ray(folder: Path) -> list[str]:
    """The processes that were started with a folder of Ray's."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and alive(int(process.name)):
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in words:
                found.append(words.decode(errors="replace")[:80])
    return found
