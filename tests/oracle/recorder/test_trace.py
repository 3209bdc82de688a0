from __future__ import annotations

import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from diffs.captured import read_tensors
from diffs.digest import available, digest_bytes, digest_tensor
from diffs.trace import open_trace
from diffs.verdict import NotComparable
from oracle.recorder.canonical import canonical_json
from oracle.recorder.trace import SCHEMA, TraceError, TraceWriter
from reference_loop.moments import MOMENTS, Address, decisive, place_rank

WEIGHT = Address(0, -1, "update", "parameter", "w")


def view(folder: Path) -> list[tuple[Any, ...]]:
    """The view that people query, whole."""
    return sqlite3.connect(folder / "trace.db").execute("SELECT * FROM trace ORDER BY ordinal").fetchall()


def python(source: str, root: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        **options,
    )


@pytest.mark.parametrize("algorithm", available())
def test_the_view_shows_every_row(tmp_path: Path, algorithm: str) -> None:
    writer = TraceWriter(tmp_path, digest=algorithm)
    matrix = torch.randn(2, 3)
    writer.put(Address(0, 1, "forward", "loss", ""), torch.tensor(0.5))
    writer.put(WEIGHT, matrix)
    writer.put(Address(0, -1, "schedule", "learning_rate", "w"), 0.1)
    writer.close()
    assert view(tmp_path) == [
        (0, 0, 1, "forward", "loss", "", 0, "float32", "[]", digest_tensor(torch.tensor(0.5), algorithm).hex(), "0.5"),
        (1, 0, -1, "update", "parameter", "w", 0, "float32", "[2, 3]", digest_tensor(matrix, algorithm).hex(), None),
        (2, 0, -1, "schedule", "learning_rate", "w", 0, None, None, digest_bytes(b"0.1", algorithm).hex(), "0.1"),
    ]


def test_the_place_table_has_ranks_and_what_is_decisive(tmp_path: Path) -> None:
    TraceWriter(tmp_path).close()
    rows = sqlite3.connect(tmp_path / "trace.db").execute("SELECT * FROM place").fetchall()
    assert rows == [
        (place_rank(moment, kind), moment, kind, decisive(moment, kind), moment == "end")
        for moment, kinds in MOMENTS.items()
        for kind in kinds
    ]


def test_the_documentation_has_the_schema_word_for_word(root: Path) -> None:
    blocks = re.findall(r"```sql\n(.*?)```", (root / "docs/trace.md").read_text(), re.DOTALL)
    assert SCHEMA in blocks


def test_the_queries_in_the_documentation_run(tmp_path: Path, root: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.put(WEIGHT, torch.ones(2))
    writer.close()
    database = sqlite3.connect(tmp_path / "trace.db")
    blocks = re.findall(r"```sql\n(SELECT.*?)```", (root / "docs/trace.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert database.execute(block).description


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0, "0"), (1.0, "1"), (-3.0, "-3"), (-0.0, "-0.0"), (0.1, "0.1"), (1e-8, "1e-08"), (1e99, "1e+99"),
        (2.0**53, "9007199254740992.0"), (2**53 - 1.0, "9007199254740991"), (True, "true"), (False, "false"),
        (None, "null"), ("é\n", '"é\\n"'), (float("nan"), "NaN"), (float("-inf"), "-Infinity"),
        ((0.9, 0.999), "[0.9,0.999]"), ([1, 2.0], "[1,2]"), ({"b": 1.0, "a": (2,)}, '{"a":[2],"b":1}'),
        ([torch.tensor(3.0), torch.tensor([1, 2])], "[3,[1,2]]"), (torch.Size([2, 3]), "[2,3]"),
    ],
)  # fmt: skip
def test_equal_values_have_one_text(value: Any, text: str) -> None:
    assert canonical_json(value) == text


def test_a_repeated_address_is_numbered(tmp_path: Path) -> None:
    """In one commit, in a later one, and where a name of that form is taken."""
    writer = TraceWriter(tmp_path)
    for value in (1, 2):
        writer.put(WEIGHT, value)
    writer.put(WEIGHT._replace(name="w#3"), 3)
    writer.commit()
    for value in (4, 5):
        writer.put(WEIGHT, value)
    writer.close()
    assert [(row[5], row[10]) for row in view(tmp_path)] == [
        ("w", "1"), ("w#2", "2"), ("w#3", "3"), ("w#4", "4"), ("w#5", "5"),
    ]  # fmt: skip


def test_nothing_exists_before_the_first_commit(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a" / "b")
    writer.put(WEIGHT, 1)
    assert not (tmp_path / "a").exists()
    writer.commit()
    assert (tmp_path / "a" / "b" / "trace.db").exists()


def test_a_trace_without_rows_is_a_trace(tmp_path: Path) -> None:
    TraceWriter(tmp_path).close()
    with open_trace(tmp_path) as trace:
        assert trace.complete and list(trace.rows()) == []


def test_the_manifest_says_that_the_trace_is_complete(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.put(WEIGHT, 1)
    writer.commit()
    with open_trace(tmp_path) as trace:
        assert not trace.complete and trace.manifest == {}
    writer.close({"command": "oracle check", "versions": {"torch": "2.13.0"}})
    assert json.loads((tmp_path / "manifest.json").read_text()) == {
        "command": "oracle check",
        "versions": {"torch": "2.13.0"},
        "complete": True,
        "format": 1,
        "digest": available()[0],
        "rank": 0,
        "addresses": 1,
        "captured": {"tensors": 0, "bytes": 0, "left_out": 0},
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "trace.db"]


def test_every_rank_has_files_of_its_own(tmp_path: Path) -> None:
    for rank in (1, 0):
        writer = TraceWriter(tmp_path, rank)
        writer.put(WEIGHT._replace(rank=rank), rank)
        writer.close()
    names = ["manifest.1.json", "manifest.json", "trace.1.db", "trace.db"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    with open_trace(tmp_path) as trace:
        assert [row.address.rank for row in trace.rows()] == [0, 1]


def test_another_rank_an_unknown_place_and_an_odd_value_are_refused(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    with pytest.raises(TraceError, match="this trace is of rank 0"):
        writer.put(WEIGHT._replace(rank=2), 1)
    with pytest.raises(TraceError, match="no moment has the place 'update', 'wish'"):
        writer.put(WEIGHT._replace(kind="wish"), 1)
    with pytest.raises(TraceError, match=r"cannot record object at .*: object is neither a tensor nor plain data"):
        writer.put(WEIGHT, object())


def test_a_killed_process_leaves_every_commit_and_no_half(tmp_path: Path, root: Path) -> None:
    source = f"""
        import os, signal, torch
        from oracle.recorder.trace import TraceWriter
        from reference_loop.moments import Address
        writer = TraceWriter({str(tmp_path / "t")!r}, capture=lambda address: True, budget_bytes=1 << 16)
        for update in range(50):
            for name in range(400 if update < 37 else 80_000):
                writer.put(Address(update, -1, "update", "parameter", f"w{{name}}"), torch.full((3,), float(update)))
            if update == 37:
                os.kill(os.getpid(), signal.SIGKILL)
            writer.commit()
    """
    assert python(source, root).returncode == -signal.SIGKILL
    # Half of the last update has reached the file already.
    assert (tmp_path / "t" / "trace.db-journal").stat().st_size > 0
    with open_trace(tmp_path / "t") as trace:
        assert not trace.complete
        assert len(trace) == 37 * 400 and trace.last_update == 36
    database = sqlite3.connect(tmp_path / "t" / "trace.db")
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_process_killed_at_any_moment_leaves_a_trace(tmp_path: Path, root: Path) -> None:
    source = """
        import sys, torch
        from oracle.recorder.trace import TraceWriter
        from reference_loop.moments import Address
        writer = TraceWriter(sys.argv[1])
        for update in range(10**6):
            for name in range(50):
                writer.put(Address(update, -1, "update", "parameter", f"w{name}"), update)
            writer.commit()
            print(update, flush=True)
    """
    for trial in range(2):
        folder = tmp_path / str(trial)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), str(folder)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(root)},
        )  # fmt: skip
        said = [process.stdout.readline() for _ in range(20 + 17 * trial)] if process.stdout else []
        process.kill()
        said += process.communicate()[0].splitlines(keepends=True)
        last = max(int(line) for line in said if line.endswith("\n"))
        with open_trace(folder) as trace:
            assert last <= trace.last_update <= last + 1
            assert len(trace) == 50 * (trace.last_update + 1)


def recorded_until(byte: int, folder: Path) -> int:
    """Record in a child that ends when a file of the trace passes a size; returns how often it committed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (byte, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        writer = TraceWriter(folder, capture=lambda address: True, budget_bytes=1 << 20)
        for update in range(12):
            for name in range(40):
                value = torch.full((300,), float(update))
                writer.put(Address(update, -1, "update", "parameter", f"w{update}.{name}"), value)
            writer.commit()
            os.write(writing, b".")
        writer.close()
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as file:
        return len(file.read())


def test_a_process_killed_at_any_byte_leaves_every_commit(tmp_path: Path) -> None:
    outcomes = set()
    for byte in range(0, 130_000, 6_001):
        folder = tmp_path / str(byte)
        commits = recorded_until(byte, folder)
        outcomes.add(commits)
        try:
            with open_trace(folder) as trace:
                assert trace.last_update + 1 in (commits, commits + 1)
                assert len(trace) == 40 * (trace.last_update + 1)
                assert not trace.complete or commits == 12
                for address, tensor in read_tensors(folder).items():
                    assert torch.equal(tensor, torch.full((300,), float(address.update)))
        except NotComparable as error:
            assert commits == 0 and str(folder) in str(error)
    assert {0, 12} < outcomes


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.put(WEIGHT, 1)
    writer.commit()
    writer.put(WEIGHT._replace(update=1), 2)
    child = os.fork()
    if child == 0:
        writer.put(WEIGHT._replace(update=2), 3)
        writer.commit()
        writer.close({})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not (tmp_path / "manifest.json").exists()
    writer.close()
    assert [row[10] for row in view(tmp_path)] == ["1", "2"]


def test_a_writer_made_before_a_fork_is_opened_after_it(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    child = os.fork()
    if child == 0:
        writer.put(WEIGHT, 1)
        writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(view(tmp_path)) == 1


def test_a_folder_that_holds_a_trace_is_refused(tmp_path: Path) -> None:
    TraceWriter(tmp_path).close()
    writer = TraceWriter(tmp_path)
    writer.put(WEIGHT, 1)
    with pytest.raises(TraceError, match=r"trace\.db exists already: record into a new folder"):
        writer.commit()


def test_a_folder_that_cannot_be_made_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = TraceWriter(tmp_path / "file" / "trace")
    writer.put(WEIGHT, 1)
    with pytest.raises(TraceError, match=r"file/trace cannot be written: .*: give a folder that can be written"):
        writer.commit()
    with pytest.raises(TraceError, match="cannot be written"):
        writer.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_clear_message(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    writer = TraceWriter(tmp_path)
    writer.put(WEIGHT, 1)
    with pytest.raises(TraceError, match="cannot be written"):
        writer.commit()


def full_disk() -> None:
    """Let the process write files of 100 kB at most, with an error beyond."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_full_disk_is_one_clear_message_and_no_complete_trace(tmp_path: Path, root: Path) -> None:
    source = f"""
        from oracle.recorder.trace import TraceError, TraceWriter
        from reference_loop.moments import Address
        writer = TraceWriter({str(tmp_path / "t")!r})
        updates = 0
        try:
            for update in range(100):
                for name in range(100):
                    writer.put(Address(update, -1, "update", "parameter", f"w{{name}}"), update)
                writer.commit()
                updates += 1
        except TraceError as error:
            print(updates, error)
        try:
            writer.close()
        except TraceError as error:
            print(error)
    """
    done = python(source, root, preexec_fn=full_disk)
    first, second = done.stdout.splitlines()
    committed, message = first.split(" ", 1)
    assert message == second and "cannot be written" in message and "free space" in message
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) in (["trace.db"], ["trace.db", "trace.db-journal"])
    with open_trace(tmp_path / "t") as trace:
        assert not trace.complete and len(trace) == 100 * int(committed)


def test_a_manifest_that_does_not_fit_is_not_there(tmp_path: Path, root: Path) -> None:
    source = f"""
        from oracle.recorder.trace import TraceError, TraceWriter
        try:
            TraceWriter({str(tmp_path / "t")!r}).close({{"command": "x" * 200_000}})
        except TraceError as error:
            print(error)
    """
    assert "cannot be written" in python(source, root, preexec_fn=full_disk).stdout
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["trace.db"]


def transformer(blocks: int) -> list[str]:
    parts = ("ln_1.weight", "ln_1.bias", "attn.weight", "attn.bias", "ln_2.weight", "mlp.up.weight", "mlp.down.weight")
    return [f"transformer.h.{block}.{part}" for block in range(blocks) for part in parts]


def test_an_address_takes_at_most_64_bytes(tmp_path: Path) -> None:
    """A transformer of 12 blocks under AdamW with two micro-batches, for 20 updates: all that the recorder writes."""
    names = transformer(12)
    tensor = torch.randn(8)
    writer = TraceWriter(tmp_path)
    count = 0

    def put(*address: Any, value: Any) -> None:
        nonlocal count
        writer.put(Address(*address), value)
        count += 1

    for name in names:
        put(-1, -1, "start", "parameter", name, value=tensor)
        for hyper, value in {"weight_decay": 0.1, "eps": 1e-8, "betas": (0.9, 0.999), "optimized": True}.items():
            put(-1, -1, "start", "hyperparameter", f"{name}.{hyper}", value=value)
    for u in range(20):
        for m in range(2):
            put(u, m, "batch", "batch_ids", "id", value=[4 * u + 2 * m, 4 * u + 2 * m + 1])
            put(u, m, "batch", "input", "input_ids", value=tensor)
            put(u, m, "forward", "rng", "torch", value=tensor)
            put(u, m, "forward", "loss", "", value=torch.rand(()))
            for name in names:
                put(u, m, "backward", "gradient", name, value=tensor)
        for name in names:
            put(u, -1, "consume", "gradient", name, value=tensor)
            put(u, -1, "consume", "learning_rate", name, value=1e-3 * (1 - u / 20))
            put(u, -1, "update", "parameter", name, value=tensor)
            for state in ("exp_avg", "exp_avg_sq"):
                put(u, -1, "update", "optimizer_state", f"{name}.{state}", value=tensor)
            put(u, -1, "update", "optimizer_state", f"{name}.step", value=torch.tensor(float(u + 1)))
        writer.commit()
        for name in names:
            put(u, -1, "schedule", "learning_rate", name, value=1e-3 * (1 - (u + 1) / 20))
    writer.close()
    assert count > 15_000
    assert (tmp_path / "trace.db").stat().st_size / count <= 64


def test_a_parted_trace_holds_what_was_recorded_until_then(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "whole")
    writer.put(WEIGHT, torch.ones(2))
    writer.part(tmp_path / "part")
    reader, gate = os.pipe()
    child = os.fork()
    if child == 0:  # it goes on after its parent wrote more
        os.read(reader, 1)
        writer.move(tmp_path / "part")
        writer.put(WEIGHT._replace(name="child"), torch.ones(2))
        writer.close()
        os._exit(0)
    writer.put(WEIGHT._replace(name="parent"), torch.ones(2))
    writer.close()
    os.write(gate, b".")
    os.waitpid(child, 0)
    names = [[row[5] for row in view(tmp_path / folder)] for folder in ("whole", "part")]
    assert names == [["w", "parent"], ["w", "child"]]
