"""The recording of a process that knows nothing of it: from the first use of torch to the end.

Runs in the recorded process: only the standard library and torch. What a recording keeps is chosen by `Options`; its
folder holds a trace for each process that trains.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from diffs.digest import available, digest_tensor
from oracle.recorder.probes import Recorder
from oracle.recorder.trace import TraceError, TraceWriter
from oracle.recorder.values import readable
from oracle.worker import flags, versions
from reference_loop.moments import MOMENTS, Address

ALWAYS = frozenset({"start", "end"})  # moments that every recording keeps
GLOBAL_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"
WATCHED_BYTES = 1 << 20  # parameters that are looked at for changes from outside, each time a window opens


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a recording keeps.

    folder: where; made when the first value is recorded.
    level: `digest`, or `full` for tensors in full as well.
    first, last: updates to keep, both included; None for no bound. every: of them each n-th.
    kinds: kinds to keep, such as "parameter", or those of one moment, such as "consume.gradient"; None for all.
    limit_bytes: recording stops, and says so, before a process's trace is larger than this; None for no limit.
    digest: of `diffs.digest.available()`; None for the first.
    command: what was started, for the manifest.
    """

    folder: str
    level: str = "digest"
    first: int | None = None
    last: int | None = None
    every: int = 1
    kinds: tuple[str, ...] | None = None
    limit_bytes: int | None = None
    digest: str | None = None
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = known_kinds()
        wrong = [kind for kind in self.kinds or () if kind not in known]
        if self.level not in ("digest", "full"):
            raise ValueError(f"level {self.level!r}: use digest or full")
        if wrong or (self.kinds is not None and not self.kinds) or isinstance(self.kinds, str):
            raise ValueError(f"kinds {self.kinds!r}: use some of {', '.join(sorted(known))}")
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every {self.every!r}: use a number from 1")

    @classmethod
    def of(cls, data: dict[str, Any]) -> Options:
        """Options from what JSON made of them."""
        known = {one.name for one in fields(cls)}
        lists = {name: tuple(data[name]) for name in ("kinds", "command") if data.get(name) is not None}
        return cls(**{name: value for name, value in {**data, **lists}.items() if name in known})

    def wants(self, address: Address) -> bool:
        """Whether a value is kept; the beginning and the end always are."""
        asked = self.kinds is None or address.kind in self.kinds or f"{address.moment}.{address.kind}" in self.kinds
        if address.moment in ALWAYS:
            return asked or address.moment == "end"
        update = address.update
        within = (self.first is None or update >= self.first) and (self.last is None or update <= self.last)
        return within and update % self.every == 0 and asked


def known_kinds() -> set[str]:
    """What `Options.kinds` may hold: every kind, by itself and with each of its moments."""
    return {word for moment, kinds in MOMENTS.items() for kind in kinds for word in (kind, f"{moment}.{kind}")}


@dataclass
class Session:
    """One process's recording. `start` puts the probes in place, `stop` closes the trace.

    notes: what could not be seen, or was seen beside the addresses, in sentences.
    error: how the process ended, where it ended badly.
    """

    options: Options
    notes: list[str] = field(default_factory=list)
    error: str | None = None

    def __post_init__(self) -> None:
        self.writer: TraceWriter | None = None
        self.recorder = Recorder(self._put, self._commit)
        self.recorder.on_micro = self._look_for_changes
        self.rank = 0
        self.started = time.time()
        self._full = False  # the limit is reached
        self._recording = True
        self._process = os.getpid()
        self._hook: Any = None
        self._closure = False  # an optimizer computed its losses itself
        self._optimizers: list[str] = []  # class names, the first to step first
        self._autocast: str | None = None  # the dtype of autocast around the first forward
        self._watched: dict[str, bytes] = {}  # some parameters, and what the last update left; b"": not known yet
        self._turn = 0

    def start(self) -> None:
        """Put the probes in place; the trace is written when the process ends."""
        self._install()
        os.register_at_fork(after_in_child=self._renew)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Take the probes away and close the trace; nothing is written where nothing was trained."""
        atexit.unregister(self.stop)
        if os.getpid() != self._process or not self._recording:
            return
        self._recording = False
        self._watched = {}  # what a script does with its model after training is its own affair
        with suppress(TraceError):
            if self.writer is not None:
                self.recorder.finish()
                self._explain_gaps()
                self.writer.close(self._manifest())
                (self.writer.folder / f".rank{self.rank}").unlink(missing_ok=True)  # its trace keeps the place
        self._uninstall()

    def _install(self) -> None:
        self.recorder.install()
        self._hook = register_optimizer_step_pre_hook(self._look_at_a_step)
        # What torch.compile's modules say of global hooks: ours look at one call of a module in a module only.
        warnings.filterwarnings("ignore", message=GLOBAL_HOOKS)

    def _uninstall(self) -> None:
        self.recorder.uninstall()
        self.recorder = Recorder(self._put, self._commit)  # lets go of models, and of the process groups in them
        if self._hook is not None:
            self._hook.remove()

    def _renew(self) -> None:
        """Begin anew in a forked child, which may train on its own; what the parent recorded stays the parent's."""
        self._uninstall()
        self.notes, self.error = [], None
        self.__post_init__()
        self._install()

    def observe(self, **parts: Any) -> None:
        """Show what the probes cannot find: `model`, `optimizer`, `scaler`, `scheduler`, `ema`.

        Raises:
            TrainerError: an optimizer without what torch's optimizers have.
        """
        self.recorder.attach(**parts)

    # What the probes tell

    def _put(self, address: Address, value: Any) -> None:
        if self._full or not self.options.wants(address):
            return
        try:
            if self.writer is None:
                self.writer = self._open()
            self.writer.put(address._replace(rank=self.rank), value)
        except TraceError as error:
            self._give_up(error)
        if address[2:4] == ("update", "parameter") and address.name in self._watched:
            self._watched[address.name] = _digest(value)

    def _open(self) -> TraceWriter:
        self.rank = _rank()
        full = self.options.level == "full"
        return TraceWriter(
            _claimed(Path(self.options.folder), self.rank),
            rank=self.rank,
            digest=self.options.digest or available()[0],
            capture=(lambda address: True) if full else None,
            budget_bytes=(self.options.limit_bytes or 1 << 60) if full else 0,
        )

    def _commit(self) -> None:
        if self.writer is None or self._full:
            return
        try:
            self.writer.commit()
        except TraceError as error:
            self._give_up(error)
            return
        limit = self.options.limit_bytes
        if limit is not None and not self._full and self.writer.bytes > limit:
            self._full = True
            self.notes.append(f"recording stopped after update {self.recorder.updates - 1}: the limit is reached")

    def _give_up(self, error: TraceError) -> None:
        """Record no more: the training that is recorded goes on as if nothing were."""
        self._full = True
        self.notes.append(f"recording stopped: {error}")
        print(f"oracle: recording stopped: {error}", file=sys.stderr)

    def _look_at_a_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._closure = self._closure or kwargs.get("closure", args[1] if len(args) > 1 else None) is not None
        if (name := type(optimizer).__name__) not in self._optimizers:
            self._optimizers.append(name)

    # Parameters that change between updates

    def _look_for_changes(self) -> None:
        """Compare some parameters with what the last update left, and choose the ones to look at after the next."""
        if self._autocast is None:
            self._autocast = _autocast()
        if self.recorder.micros:  # a window is open already
            return
        parameters = dict(self.recorder.parameters())
        for name, digest in self._watched.items():
            if digest and name in parameters and _digest(parameters[name]) != digest:
                self._note_change(name)
        self._watched = dict.fromkeys(self._chosen(parameters), b"")

    def _note_change(self, name: str) -> None:
        told = f"parameter changed outside an optimizer: {name}, before update {self.recorder.updates}"
        if len(self.notes) < 100:
            self.notes.append(told)

    def _chosen(self, parameters: dict[str, torch.Tensor]) -> list[str]:
        """As many parameters as fit, others each time."""
        names = list(parameters)
        chosen: list[str] = []
        size = 0
        for offset in range(len(names)):
            name = names[(self._turn + offset) % len(names)]
            size += parameters[name].numel() * parameters[name].element_size()
            if chosen and size > WATCHED_BYTES:
                break
            chosen.append(name)
        self._turn += len(chosen)
        return chosen

    # The end

    def _explain_gaps(self) -> None:
        recorder = self.recorder
        if recorder.batches and not recorder.updates:
            self.notes.append(
                "no step of an optimizer was seen: it is none of torch.optim's, or there was none; oracle.record(...) "
                "takes one by `observe`"
            )
        if recorder.nameless:
            self.notes.append(
                f"{recorder.nameless} tensors of an optimizer belong to no module that was called, as flat shards do: "
                "they are recorded as parameter[0], parameter[1]..."
            )

    def _manifest(self) -> dict[str, Any]:
        return {
            "kind": "recording",
            "command": list(self.options.command),
            "arguments": sys.argv,
            "options": asdict(self.options),
            "versions": versions(),
            "flags": flags(torch.get_num_threads()),
            "devices": self.recorder.devices,
            "updates": self.recorder.updates,
            "batches": self.recorder.batches,
            "closure": self._closure,
            "optimizers": self._optimizers,
            "autocast": self._autocast,
            "notes": self.notes,
            "error": self.error,
            "ended": self.error is None,
            "seconds": time.time() - self.started,
        }


@contextmanager
def record(folder: str | os.PathLike[str], **options: Any) -> Iterator[Session]:
    """Record the training in the block into a folder, as `oracle record` does of a whole script.

    options: of `Options`. The session's `observe` shows what the probes cannot find, as a job's does.

    Raises:
        TraceError: the folder cannot be written, or holds a recording.
    """
    session = _begun(folder, options)
    session.start()
    try:
        yield session
    except BaseException as error:
        session.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        session.stop()


class Inside:
    """A recording that another project's callback begins and ends.

    folder, options: as `record` takes them.

    Raises:
        TraceError: the folder holds something.
    """

    def __init__(self, folder: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._session = _begun(folder, options)

    def begin(self, **parts: Any) -> None:
        """Training begins. parts: as `Session.observe` takes them."""
        self._session.error = "the trainer did not say that it ended"
        self._session.start()
        self._session.observe(**parts)

    def metric(self, moment: str, name: str, value: Any) -> None:
        """A number that the trainer reports: `log` or `evaluate`."""
        self._session.recorder.metric(moment, name, value)

    def end(self, error: BaseException | None = None) -> None:
        """Training ended; error: by this one."""
        self._session.error = None if error is None else f"{type(error).__name__}: {error}"
        self._session.stop()


def _begun(folder: str | os.PathLike[str], options: dict[str, Any]) -> Session:
    if os.path.isdir(folder) and os.listdir(folder):
        raise TraceError(f"{folder} is not empty: record into a new folder")
    return Session(Options(folder=str(folder), **options))


def watch_the_end(session: Session) -> None:
    """Note an exception that ends the process in the session, and show it as before."""
    shown: Callable[..., Any] = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        session.error = f"{kind.__name__}: {error}".splitlines()[0]
        shown(kind, error, trace)

    sys.excepthook = hook


def _digest(tensor: torch.Tensor) -> bytes:
    return digest_tensor(readable(tensor), available()[0])


def _autocast() -> str | None:
    """The dtype that autocast computes in here; None where it is off."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None


def _rank() -> int:
    """This process's place among those that train together."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def _claimed(folder: Path, rank: int) -> Path:
    """A folder for the trace of a rank that no other process took: `folder`, or `process2`, `process3`... in it.

    Raises:
        TraceError: it cannot be made.
    """
    number = 1
    while True:
        place = folder if number == 1 else folder / f"process{number}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            if (place / f"trace{f'.{rank}' if rank else ''}.db").exists():
                raise FileExistsError
            os.close(os.open(place / f".rank{rank}", os.O_CREAT | os.O_EXCL))
            return place
        except FileExistsError:
            number += 1
        except OSError as error:
            words = f"cannot record into {place}: {error.strerror}: give a folder that can be written"
            raise TraceError(words) from error
