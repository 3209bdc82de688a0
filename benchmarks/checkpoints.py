"""What comparing two checkpoints of 1 GB costs, beside the tools that people use, and how much memory it takes.

The candidates of a round are taken one after another, in an order that changes from round to round, in one process that
has torch imported. "Plain memcmp" maps both files in windows of 4 MB, as the comparison does, and knows no tensors.
Tools that people use are taken on equal files. On 2 cores and nothing else running, all of it takes about 4 minutes.

    python -m benchmarks.checkpoints [--size GB] [--rounds N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import json
import math
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figure import ROUNDS, Figure, main

WIDTH, VOCABULARY = 640, 32_000
LEAST = 0.90  # of the speed of plain memcmp
MOST_MEMORY = 150.0  # MB
CHANGED = 0.05  # of the elements
SLOWEST_CHANGED = 1.0  # GB/s
ZIPPED = 1.5  # of safetensors' time
LARGE = 8  # times the size of the others, at which memory is to be what it is at theirs
FLAT = 10.0  # MB by which it may differ
FLAT_ROUNDS = 3
ROOM = 8.5  # times the size of a checkpoint: what is written

Seconds = Callable[[Path, Path], None]


def write(folder: Path, gigabytes: float) -> None:
    """Write a decoder with AdamW state as safetensors and by torch.save: twice the same, one bit and 5 % changed."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    layer = 12 * WIDTH * WIDTH
    layers = max(1, round((gigabytes * 1e9 / 12 - WIDTH * VOCABULARY) / layer))
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (VOCABULARY, WIDTH)}
    for number in range(layers):
        name = f"layers.{number}"
        shapes |= {f"{name}.query_key_value.weight": (3 * WIDTH, WIDTH), f"{name}.out.weight": (WIDTH, WIDTH)}
        shapes |= {f"{name}.up.weight": (4 * WIDTH, WIDTH), f"{name}.down.weight": (WIDTH, 4 * WIDTH)}
        shapes |= {f"{name}.norm{place}.weight": (WIDTH,) for place in (1, 2)}
    model = {name: torch.randn(shape) for name, shape in shapes.items()}
    state = {
        place: {"step": torch.tensor(9.0), "exp_avg": torch.randn(shape), "exp_avg_sq": torch.rand(shape)}
        for place, shape in enumerate(shapes.values())
    }
    saved = {"model": model, "optimizer": {"state": state, "param_groups": [{"params": list(state)}]}}
    flat = {**model, **{f"{place}.{key}": one for place, kept in state.items() for key, one in kept.items()}}

    def save(name: str) -> None:
        (folder / name).mkdir()
        save_file(flat, folder / name / "checkpoint.safetensors")
        torch.save(saved, folder / name / "checkpoint.pt")

    save("reference")
    save("equal")
    middle = model[f"layers.{layers // 2}.up.weight"].view(torch.int32)
    middle[7, 5] ^= 1
    save("one bit")
    middle[7, 5] ^= 1
    for tensor in flat.values():
        places = torch.randint(tensor.numel(), (int(tensor.numel() * CHANGED),))
        tensor.view(-1)[places] *= 1.0001
    save("5 percent")


def write_sparse(path: Path, gigabytes: float) -> None:
    """Write a safetensors file of zeros that take no room on the disk, but for one bit of every hundredth tensor."""
    rows = 5_000
    names = [f"layers.{number}.weight" for number in range(max(1, round(gigabytes * 1e9 / (4 * rows * WIDTH))))]
    nbytes = 4 * rows * WIDTH
    header = json.dumps({
        name: {"dtype": "F32", "shape": [rows, WIDTH], "data_offsets": [place * nbytes, (place + 1) * nbytes]}
        for place, name in enumerate(names)
    }).encode()  # fmt: skip
    begin = 8 + math.ceil(len(header) / 8) * 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", begin - 8) + header.ljust(begin - 8))
        file.truncate(begin + nbytes * len(names))
        for place in range(0, len(names), 100) if path.stem == "other" else ():
            file.seek(begin + nbytes * place + nbytes // 2)
            file.write(b"\1")


def ours(left: Path, right: Path) -> None:
    """The comparison, from opening both files to the last tensor."""
    from diffs.checkpoints.comparison import compare
    from diffs.checkpoints.formats import open_checkpoint

    compare(open_checkpoint(left), open_checkpoint(right))


def plain(left: Path, right: Path) -> None:
    """libc's memcmp over mapped windows of 4 MB."""
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    import numpy as np

    flags, window = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), 4 << 20
    with open(left, "rb") as one, open(right, "rb") as other:
        size = os.fstat(one.fileno()).st_size
        for start in range(0, size, window):
            length = min(window, size - start)
            maps = [mmap.mmap(f.fileno(), length, flags, mmap.PROT_READ, offset=start) for f in (one, other)]
            memcmp(*(np.frombuffer(m, np.uint8).__array_interface__["data"][0] for m in maps), length)
            for mapped in maps:
                mapped.close()


def command(*words: str) -> Seconds:
    """A program over both files."""

    def run(left: Path, right: Path) -> None:
        subprocess.run([*words, str(left), str(right)], stdout=subprocess.DEVNULL, check=False)

    return run


def torch_equal(left: Path, right: Path) -> None:
    """torch.load of both files, then torch.equal of every tensor."""
    import torch

    def tensors(value: object) -> list[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return [value]
        return [one for item in value.values() for one in tensors(item)] if isinstance(value, dict) else []

    one, other = (tensors(torch.load(path, weights_only=True)) for path in (left, right))
    _ = [torch.equal(a, b) for a, b in zip(one, other, strict=True)]


def safetensors_equal(left: Path, right: Path) -> None:
    """safetensors' load_file of both files, then torch.equal of every tensor."""
    import torch
    from safetensors.torch import load_file

    one, other = load_file(left), load_file(right)
    _ = [torch.equal(one[name], other[name]) for name in one]


CANDIDATES: dict[str, Seconds] = {
    "ours": ours,
    "plain memcmp": plain,
    "cmp": command("cmp", "-s"),
    "sha256sum": command("sha256sum"),
    "cat": command("cat"),
    "torch.load and torch.equal": torch_equal,
    "safetensors and torch.equal": safetensors_equal,
}


def taken(candidate: Seconds, left: Path, right: Path) -> tuple[float, float]:
    """Seconds that a candidate takes, and MB by which it raises the peak of resident memory."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = _kilobytes("VmRSS")
    started = time.perf_counter()
    candidate(left, right)
    seconds = time.perf_counter() - started
    return seconds, (_kilobytes("VmHWM") - before) / 1000


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def drop_cache(*paths: Path) -> None:
    """Make the next read of some files come from the disk.

    Raises:
        SystemExit: they stay in memory, as on a file system that has no disk.
    """
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                os.preadv(file.fileno(), [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                    continue
                raise
            raise SystemExit(f"{path.parent} stays in memory: choose a --folder on a disk")


def measure(gigabytes: float = 1.0, rounds: int = ROUNDS, place: str | None = None) -> list[Figure]:
    """The figures of all cases; how long it takes goes to the standard error.

    place: a folder on a disk; None is the system's for temporary files.

    Raises:
        SystemExit: it has too little room, or no disk.
    """
    import torch

    torch.set_num_threads(1)
    started = time.monotonic()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < ROOM * gigabytes * 1e9:
            raise SystemExit(f"{folder.parent} has no room for {ROOM * gigabytes:g} GB: choose another --folder")
        _tell(f"load average {os.getloadavg()[0]:.1f}; the clock's figures need a machine that does nothing else")
        subprocess.run([sys.executable, "-m", "benchmarks.checkpoints", "--write", name, str(gigabytes)], check=True)
        for case in ("equal", "one bit", "5 percent"):
            figures += _said(_warm(folder, case, "safetensors", rounds))
        for case in ("equal", "one bit"):
            figures += _said(_warm(folder, case, "pt", rounds))
        figures += _said(_cold(folder, rounds))
        figures += _said(_flat(folder, gigabytes))
    _tell(f"took {time.monotonic() - started:.0f} s")
    return figures


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _said(figures: list[Figure]) -> list[Figure]:
    """The figures, each told at once: all of them take minutes."""
    for figure in figures:
        _tell("  ".join(figure.row()))
    return figures


def _warm(folder: Path, case: str, suffix: str, rounds: int) -> list[Figure]:
    left, right = (folder / name / f"checkpoint.{suffix}" for name in ("reference", case))
    gigabytes = left.stat().st_size / 1e9
    others = {
        "safetensors": ["cmp", "sha256sum", "safetensors and torch.equal"],
        "pt": ["cmp", "torch.load and torch.equal"],
    }
    names = ["ours", "plain memcmp", *(others[suffix] if case == "equal" else [])]
    runs: dict[str, list[float]] = {name: [] for name in names}
    for name in names[:2]:
        CANDIDATES[name](left, right)  # imports what it needs, and warms the cache
    memory, busy, zipped = [], [], []
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            before = time.process_time()
            seconds, peak = taken(CANDIDATES[name], left, right)
            runs[name].append(seconds)
            if name == "ours":
                memory.append(peak)
                busy.append(time.process_time() - before)
        if suffix == "pt":
            other, _ = taken(ours, left.with_suffix(".safetensors"), right.with_suffix(".safetensors"))
            zipped.append(runs["ours"][-1] / other)
    what = f"compare {gigabytes:.2f} GB of {suffix}, {case}"
    found = [Figure(name=f"{what}: memory", unit="MB beyond torch", runs=tuple(memory), limit=MOST_MEMORY)]
    if case == "5 percent":
        clock, processor = (tuple(seconds / gigabytes for seconds in each) for each in (runs["ours"], busy))
        found.append(Figure(name=what, unit="s per GB, with ULP", runs=clock, limit=1 / SLOWEST_CHANGED))
        found.append(Figure(name=what, unit="processor s per GB, with ULP", runs=processor))
    else:
        pairs = tuple(one / other for one, other in zip(runs["ours"], runs["plain memcmp"], strict=True))
        limit = 1 / LEAST if suffix == "safetensors" else None
        found.append(Figure(name=what, unit="x plain memcmp", runs=pairs, limit=limit))
    if zipped:
        found.append(Figure(name=what, unit="x safetensors", runs=tuple(zipped), limit=ZIPPED))
    return found + [Figure(name=f"{what}: {name}", unit="s", runs=tuple(seconds)) for name, seconds in runs.items()]


def _cold(folder: Path, rounds: int) -> list[Figure]:
    left, right = (folder / name / "checkpoint.safetensors" for name in ("reference", "equal"))
    runs: dict[str, list[float]] = {"ours": [], "cat": []}
    for number in range(rounds):
        for name in ("ours", "cat") if number % 2 else ("cat", "ours"):
            drop_cache(left, right)
            runs[name].append(taken(CANDIDATES[name], left, right)[0])
    pairs = tuple(one / other for one, other in zip(runs["ours"], runs["cat"], strict=True))
    what = "compare cold files, equal"
    return [
        Figure(name=what, unit="x cat of both", runs=pairs, limit=1.0),
        *(Figure(name=f"{what}: {name}", unit="s", runs=tuple(seconds)) for name, seconds in runs.items()),
    ]


def _flat(folder: Path, gigabytes: float) -> list[Figure]:
    """By how much more memory the comparison takes where files are several times as large."""
    peaks: dict[float, list[float]] = {}
    for size in (gigabytes, LARGE * gigabytes):
        pair = [folder / f"{name}.safetensors" for name in ("one", "other")]
        for path in pair:
            write_sparse(path, size)
        peaks[size] = [taken(ours, *pair)[1] for _ in range(FLAT_ROUNDS)]
        for path in pair:
            path.unlink()
    small, large = peaks.values()
    more = tuple(after - before for before, after in zip(small, large, strict=True))
    what = f"compare {LARGE * gigabytes:g} GB of safetensors: memory"
    return [
        Figure(name=what, unit=f"MB more than of {gigabytes:g} GB", runs=more, limit=FLAT),
        Figure(name=what, unit="MB beyond torch", runs=tuple(large), limit=MOST_MEMORY),
    ]


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=float, default=1.0, help="GB of a checkpoint")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", help="on a disk with room for 8.5 times the size")
    parser.add_argument("--json")
    parser.add_argument("--write", nargs=2)
    return parser.parse_args(given)


if __name__ == "__main__":
    chosen = _arguments(sys.argv[1:])
    if chosen.write:
        write(Path(chosen.write[0]), float(chosen.write[1]))
    else:
        main(lambda: measure(chosen.size, chosen.rounds, chosen.folder))
