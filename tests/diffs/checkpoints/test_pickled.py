from __future__ import annotations

import argparse
import builtins
import collections
import datetime
import enum
import functools
import os
import pickle
import resource
import struct
import subprocess
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffs.checkpoints import checkpoint
from diffs.checkpoints.checkpoint import split
from diffs.checkpoints.pickled import no_storages, unpickle
from diffs.checkpoints.stored import Damaged, Unsafe


def read(value: Any, protocol: int = 2) -> Any:
    """A value through a pickle, as plain data."""
    return split({"value": unpickle(pickle.dumps(value, protocol), "x", no_storages)[0]})[1].get("value")


class Color(enum.Enum):
    RED = "red"


class Settings:
    def __init__(self) -> None:
        self.rate, self.color = 0.1, Color.RED


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_data_is_read_as_it_is(protocol: int) -> None:
    value = {"a": [1, 2.5, None, True, "text"], "b": {"c": (1, -(2**70))}, "d": float("inf")}
    assert read(value, protocol) == {"a": [1, 2.5, None, True, "text"], "b": {"c": [1, -(2**70)]}, "d": float("inf")}


@pytest.mark.parametrize("protocol", [2, 4])
def test_known_containers_are_read_as_what_they_hold(protocol: int) -> None:
    assert read(collections.OrderedDict(a=1), protocol) == {"a": 1}
    assert read(collections.defaultdict(list, a=[1]), protocol) == {"a": [1]}
    assert read({3, 1}, protocol) == ["1", "3"]
    assert read(torch.float32, protocol) == "torch.float32"
    assert read(torch.Size([1, 2]), protocol) == [1, 2]
    assert read(np.float64(1.5), protocol) == 1.5 and read(np.array(7), protocol) == 7
    assert read(b"ab", protocol) == "6162"


def test_arrays_become_tensors() -> None:
    for array in (
        np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.asfortranarray(np.ones((2, 3)) * [1, 2, 3]),
        np.arange(3).astype(">i8"),
    ):
        tensors, _ = split({"a": unpickle(pickle.dumps(array, 2), "x", no_storages)[0]})
        assert np.array_equal(tensors["a"].tensor().numpy(), array)


def test_foreign_objects_are_what_they_are_made_of_and_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    content = [pickle.dumps(value) for value in (Settings(), argparse.Namespace(lr=1), functools.partial(max, 1))]

    def refuse(name: str, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(builtins, "__import__", refuse)
    found, foreign = unpickle(content[0], "x", no_storages)
    spaces, _ = unpickle(content[1], "x", no_storages)
    monkeypatch.undo()
    assert found.plain() == {"class": f"{__name__}.Settings", "rate": 0.1, "color": found.state["color"]}
    assert found.state["color"].plain() == f"{__name__}.Color('red')"
    assert foreign == {f"{__name__}.Settings", f"{__name__}.Color"}
    assert spaces.plain() == {"class": "argparse.Namespace", "lr": 1}


ran: list[str] = []


def payload(*arguments: Any) -> str:
    ran.append("payload")
    return "done"


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (os.system, ("touch /tmp/never",)),
        (eval, ("ran.append(1)",)),
        (exec, ("ran.append(1)",)),
        (payload, ()),
        (subprocess.Popen, (["touch", "/tmp/never"],)),
        (getattr, (os, "system")),
        (__import__, ("os",)),
        (open, ("/tmp/never", "w")),
        (os.mkdir, ("/tmp/never",)),
        (torch.load, ("x",)),
        (functools.reduce, (max, [1])),
        (pickle.loads, (b"",)),
        (print, ("x",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_payload_is_refused_and_never_run(function: Any, arguments: Any, protocol: int) -> None:
    if function is getattr:
        arguments = ("text", "upper")
    content = pickle.dumps({"model": [Calls(function, *arguments)]}, protocol)
    with pytest.raises(Unsafe, match=r"at byte [\d,]+; nothing of it was run"):
        unpickle(content, "x", no_storages)
    assert not ran and not Path("/tmp/never").exists()


def test_a_date_is_data() -> None:
    assert read(datetime.timedelta(1, 2)) == "datetime.timedelta(1, 2, 0)"


def test_a_range_is_data() -> None:
    assert read(range(2, 5)) == "range(2, 5, 1)"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        pytest.param(b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b".", [], id="memo"),
        pytest.param(b"\x80\x05\x96" + struct.pack("<Q", 2 << 30) + b"ab.", None, id="bytearray"),
        pytest.param(b"\x80\x05\x96" + struct.pack("<Q", 2) + b"ab.", bytearray(b"ab"), id="whole bytearray"),
        pytest.param(
            b"\x80\x02cbuiltins\nlist\ncbuiltins\nrange\nK\x03\x85R\x85R.", [*"range(3)"], id="list of a range"
        ),
    ],
)
def test_a_few_bytes_take_no_memory(content: bytes, found: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(Damaged) if found is None else nullcontext():
        read_back = unpickle(content, "x", no_storages)[0]
        assert found is not None and read_back == found
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


DOUBLED = b")q\x010" + b"h\x01h\x01\x86q\x010" * 60  # a tuple of the tuple before it, twice, and so on: 2**60 values


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x80\x02}" + DOUBLED + b"h\x01K\x01s.", id="key"),
        pytest.param(b"\x80\x04" + DOUBLED + b"\x8f(h\x01\x90.", id="set"),
        pytest.param(b"\x80\x02" + DOUBLED + b"h\x01Q.", id="storage"),
    ],
)
@pytest.mark.timeout(60)
def test_a_few_bytes_take_no_time(content: bytes) -> None:
    with pytest.raises(Damaged, match="a tuple holds 1,048,574 values, 1,000,000 are read at most"):
        unpickle(content, "x", no_storages)


def test_shared_lists_are_printed_in_part() -> None:
    content = b"\x80\x02]q\x010" + b"(h\x01h\x01lq\x010" * 60 + b"(h\x01K\x01K\x01K\x01K\x01tQ."
    with pytest.raises(Damaged, match="a storage is described as"):
        unpickle(content, "x", no_storages)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02]",
        b"\x80\x02ccollections\nOrderedDict\n)R}(X\x01\x00\x00\x00a",
        b"\x80\x02(.",
        b"\x80\x63.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
        b"\x80\x02\x8a\xff",
        b"\x80\x02K\x01R.",
        b"\x80\x02}]s.",
        b"\x80\x02Pabc\n.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x01K\x01K\x01tR.",
        b"\x80\x02ctorch\nfloat32\n}b.",
        b"\x80\x02cbuiltins\nbytes\nJ\xff\xff\xff\x7f\x85R.",
        b"\x80\x02cbuiltins\nlist\n}b.",
        b"I" + b"9" * 5000 + b"\n.",
    ],
)
def test_what_is_no_pickle_is_named_with_the_byte_where_it_breaks(content: bytes) -> None:
    with pytest.raises(Damaged, match=r"x: its pickle breaks at byte \d+"):
        unpickle(content, "x", no_storages)


def test_a_state_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Damaged, match="without end"):
        read(endless)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    content = b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."
    with pytest.raises(Damaged, match="deep"):
        split(unpickle(content, "x", no_storages)[0])


def test_a_state_that_grows_at_every_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MOST_VALUES", 10_000)
    value: Any = [1]
    for _ in range(30):
        value = [value] * 10
    with pytest.raises(Damaged, match="more than 10,000"):
        read(value)


def test_a_key_with_control_characters_is_refused() -> None:
    with pytest.raises(Damaged, match="control character"):
        read({"a\x1b[2J": 1})
