"""Independent pieces of work, spread over the processes of this machine, or over a Ray cluster.

A worker is a process that does one piece after another and keeps a warm server between them. Whichever kind it is, it
does the same work, so what comes out is the same; only the order in which pieces end is not, and `in_order` mends that.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import secrets
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from oracle import guard, source
from oracle.errors import OracleError
from oracle.replays import Server
from oracle.worker import die_with_parent

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Where = Literal["local", "ray"]

OBJECTS = 100 << 20  # bytes of a local Ray's object store; what is passed around is small
WITHOUT_RAY = "this environment has no ray: pip install 'trainer-oracle[ray]', or leave --cluster ray out"


class Worker:
    """What a worker keeps from one piece of work to the next; gone with its process, however that ends."""

    def __init__(self) -> None:
        self._kept = ExitStack()
        self._folder = self._kept.enter_context(guard.folder())
        self._server: Server | None = None
        self._of: Any = None

    def server(
        self,
        imports: Sequence[str] = (),
        *,
        task: str | None = None,
        python: str = sys.executable,
        layer: Path | None = None,
    ) -> Server:
        """A warm server for an environment: the one at hand, or a new one in its place.

        imports, task, python, layer: as `Server` takes them.
        """
        asked = (tuple(imports), task, python, layer)
        if self._server is None or self._of != asked or not self._server.alive:
            self._drop()
            self._server = Server(self._folder, imports=imports, task=task, python=python, layer=layer)
            self._of = asked
        return self._server

    def close(self) -> None:
        """End the server, and remove what the worker wrote."""
        self._drop()
        self._kept.close()

    def _drop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


Work = Callable[[Worker, Item], Answer]
"""A function of a module, so that any process can import it."""


def spread(
    work: Work[Item, Answer],
    items: Sequence[Item],
    *,
    where: Where = "local",
    workers: int | None = None,
    whole_nodes: bool = False,
) -> Iterator[tuple[int, Answer]]:
    """Do one piece of work for each item, several at a time; yields (number of the item, answer) as they end.

    workers: how many; None is one for each processor, of this machine or of the cluster.
    whole_nodes: on Ray, give each worker a node of its own with all its processors, for work that is timed.

    Wherever it is left, by an exception too, no worker goes on.

    Raises:
        OracleError: there is no Ray, a worker ended without an answer; also whatever `work` raises.
    """
    if not items:
        return
    if where == "ray":
        yield from _over_ray(work, items, workers, whole_nodes)
    else:
        yield from _over_processes(work, items, min(workers or os.cpu_count() or 1, len(items)))


def in_order(answers: Iterable[tuple[int, Answer]]) -> Iterator[Answer]:
    """The answers of `spread` in the order of the items, each as soon as those before it are there."""
    early: dict[int, Answer] = {}
    due = 0
    for number, answer in answers:
        early[number] = answer
        while due in early:
            yield early.pop(due)
            due += 1


# Processes of this machine

_worker: Worker | None = None


def _over_processes(work: Work[Item, Answer], items: Sequence[Item], workers: int) -> Iterator[tuple[int, Answer]]:
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
    )
    try:
        numbers = {pool.submit(_do, work, item): number for number, item in enumerate(items)}
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    except BrokenProcessPool as error:
        raise OracleError(
            "a worker process ended without an answer, as one does that finds no memory: run it again with fewer "
            "--processes"
        ) from error
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:  # what they do is of no use any more
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Make this process a worker. Ctrl-C is its parent's affair, which then ends it."""
    global _worker
    die_with_parent(parent)
    signal.signal(signal.SIGINT, lambda *_: None)
    _worker = Worker()
    atexit.register(_worker.close)


def _do(work: Work[Item, Answer], item: Item) -> Answer:
    assert _worker is not None
    return work(_worker, item)


# Ray


class Remote:
    """A worker in a process of Ray's, an actor; it works in the folder in which the command was given."""

    def __init__(self, expected: str, directory: str) -> None:
        self._expected, self._directory = expected, directory
        self._worker: Worker | None = None

    def do(self, work: Work[Item, Answer], item: Item) -> Answer:
        """Do a piece of work.

        Raises:
            OracleError: this node is not as the one on which the command was given.
        """
        self._worker = self._worker or self._begin()
        return work(self._worker, item)

    def _begin(self) -> Worker:
        if source.digest() != self._expected:
            raise OracleError("--cluster ray: a node has another version of the oracle: install the same on every node")
        try:
            os.chdir(self._directory)
        except OSError as error:
            reason = f"a node cannot enter {self._directory}: {error.strerror}"
            raise OracleError(f"--cluster ray: {reason}: work in a folder that all nodes share") from error
        return Worker()


def _over_ray(
    work: Work[Item, Answer], items: Sequence[Item], workers: int | None, whole_nodes: bool
) -> Iterator[tuple[int, Answer]]:
    try:
        import ray
    except ImportError as error:
        raise OracleError(f"--cluster ray: {WITHOUT_RAY}") from error
    with _connected(ray, workers):
        waiting = deque(enumerate(items))
        running: dict[Any, tuple[int, Any]] = {}
        places = _places(ray, whole_nodes)[: min(workers or len(items), len(items))]
        if not places:
            raise OracleError("--cluster ray: no node of the cluster has a processor: `ray status` shows what it has")
        told = (source.digest(), os.getcwd())
        idle = [ray.remote(Remote).options(**place).remote(*told) for place in places]
        try:
            while waiting or running:
                while waiting and idle:
                    number, item = waiting.popleft()
                    actor = idle.pop()
                    running[actor.do.remote(work, item)] = (number, actor)
                (done,), _ = ray.wait(list(running), num_returns=1)
                number, actor = running.pop(done)
                yield number, ray.get(done)
                idle.append(actor)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1].strip().partition(". ")[0]
            raise OracleError(
                f"--cluster ray: a worker ended without an answer: {reason}: every node needs this oracle, and what it "
                "runs on, at the same place"
            ) from error


def _places(ray: Any, whole_nodes: bool) -> list[dict[str, Any]]:
    """What Ray is asked for, for each worker that there is room for."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    if not whole_nodes:
        return [{"num_cpus": 1}] * sum(int(node["Resources"]["CPU"]) for node in nodes)
    kind = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    return [
        {"num_cpus": node["Resources"]["CPU"], "scheduling_strategy": kind(node["NodeID"], soft=False)}
        for node in nodes
    ]


@contextmanager
def _connected(ray: Any, workers: int | None) -> Iterator[None]:
    """A connection to the cluster that RAY_ADDRESS names; to a Ray of our own, gone afterwards, where it names none.

    Raises:
        OracleError: the cluster cannot be reached.
    """
    address = os.environ.get("RAY_ADDRESS", "local")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ended = signal.getsignal(signal.SIGTERM)  # Ray sets its own
    with ExitStack() as kept:
        kept.callback(signal.signal, signal.SIGTERM, ended)
        if address != "local":
            kept.callback(ray.shutdown)
            try:
                ray.init(address, **quiet)
            except Exception as error:  # each kind of address has its own
                reason = str(error).partition("\n")[0]
                raise OracleError(
                    f"--cluster ray: RAY_ADDRESS is {address}, and no cluster answers there: {reason}: start one with "
                    "`ray start --head`, or unset RAY_ADDRESS for one on this machine"
                ) from error
        else:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # otherwise one is written to the home
            folder = kept.enter_context(guard.folder())
            kept.callback(ray.shutdown)
            ray.init(
                address, num_cpus=workers or os.cpu_count(), object_store_memory=OBJECTS, _temp_dir=str(folder), **quiet
            )
        signal.signal(signal.SIGTERM, ended)
        yield
