"""What it costs to compare two recordings of 1,000 updates x 1,000 addresses: equal ones, and ones that part."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figure import Figure, main
from oracle.recorder.trace import TraceWriter
from reference_loop.moments import Address

ROUNDS = 3
UPDATES, NAMES = 1000, 250
PLACES = (("backward", "gradient"), ("consume", "gradient"), ("update", "parameter"), ("update", "optimizer_state"))
NEVER = UPDATES
LIMIT_SECONDS, LIMIT_MEGABYTES = 3.0, 200.0

# In a process of its own, for its peak; torch is there before, as it is of every command that compares.
COMPARE = """
import json, resource, sys, time
from pathlib import Path
import torch
from diffs.verdict import Policy
from oracle.diff import Request, diff
import oracle.traces
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, started = peak(), time.process_time()
found = diff(Request(reference=Path(sys.argv[1]), candidate=Path(sys.argv[2]), policy=Policy.parse("exact")))
list(found.lines)
print(json.dumps([time.process_time() - started, (peak() - before) / 1000, found.verdict]))
"""


def measure() -> list[Figure]:
    """Seconds and megabytes of both comparisons."""
    figures = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for folder, parting in (("reference", NEVER), ("equal", NEVER), ("parted", 5)):
            write(place / folder, parting)
        for folder, verdict in (("equal", "match"), ("parted", "diverged")):
            runs = [_compare(place / "reference", place / folder, verdict) for _ in range(ROUNDS)]
            told = f"comparing recordings, {'equal' if verdict == 'match' else 'unequal from update 5 on'}"
            figures += [
                Figure(name=told, unit="s of the processor", runs=tuple(run[0] for run in runs), limit=LIMIT_SECONDS),
                Figure(name=told, unit="MB", runs=tuple(run[1] for run in runs), limit=LIMIT_MEGABYTES),
            ]
    return figures


def write(folder: Path, parting: int, updates: int = UPDATES, names: int = NAMES) -> None:
    """Write a recording. parting: the first update whose values are others."""
    writer = TraceWriter(folder)
    for update in range(updates):
        for moment, kind in PLACES:
            micro = 0 if moment == "backward" else -1
            for number in range(names):
                address = Address(update, micro, moment, kind, f"layer.{number}.weight")
                writer.put(address, update + 0.5 * (update >= parting))
        writer.commit()
    writer.close({"kind": "recording", "ended": True})


def _compare(reference: Path, candidate: Path, verdict: str) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(reference), str(candidate)], check=True, stdout=subprocess.PIPE, text=True
    )
    seconds, megabytes, found = json.loads(done.stdout)
    assert found == verdict, found
    return seconds, megabytes


if __name__ == "__main__":
    main(measure)
