"""Files with bytes changed, cut or added: each is read or refused; nothing runs, hangs or fills memory."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from diffs.checkpoints.comparison import compare
from diffs.checkpoints.formats import open_checkpoint
from diffs.checkpoints.pickled import no_storages, unpickle
from diffs.verdict import NotComparable

pytestmark = pytest.mark.slow
MANY = settings(max_examples=600, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mutated(data: st.DataObject, content: bytes) -> bytes:
    """Some content with a few changes."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(changed) - 1)))
        match data.draw(st.sampled_from(["flip", "byte", "cut", "insert", "delete", "number"])):
            case "flip":
                changed[place : place + 1] = bytes(
                    byte ^ 1 << data.draw(st.integers(0, 7)) for byte in changed[place : place + 1]
                )
            case "byte":
                changed[place : place + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del changed[place:]
            case "insert":
                changed[place:place] = data.draw(st.binary(max_size=16))
            case "delete":
                del changed[place : place + data.draw(st.integers(1, 64))]
            case "number":
                value = data.draw(st.sampled_from([0, 1, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62]))
                changed[place : place + 8] = value.to_bytes(8, "little")
    return bytes(changed)


def survives(path: Path) -> None:
    """Open and compare what lies there, to the end or to a refusal."""
    try:
        checkpoint = open_checkpoint(path)
        other = open_checkpoint(path)
        compare(checkpoint, other)
        for part in checkpoint.parts.values():
            for name, tensor in part.tensors.items():
                assert name.isprintable()
                if tensor.nbytes < 1 << 20:
                    tensor.tensor()
    except NotComparable as error:
        assert str(error)


def samples(saved: dict[str, Any]) -> dict[str, bytes]:
    content = {}
    for name, zipped in (("x.pt", True), ("old.pt", False)):
        buffer = io.BytesIO()
        torch.save(saved, buffer, _use_new_zipfile_serialization=zipped)
        content[name] = buffer.getvalue()
    return {**content, "x.safetensors": save(saved["model"])}


@MANY
@given(data=st.data())
@pytest.mark.parametrize("name", ["x.pt", "old.pt", "x.safetensors"])
def test_a_changed_file_is_read_or_refused(
    tmp_path: Path, saved: dict[str, Any], name: str, data: st.DataObject
) -> None:
    (tmp_path / name).write_bytes(mutated(data, samples(saved)[name]))
    survives(tmp_path / name)


@MANY
@given(data=st.data())
def test_a_changed_table_of_a_distributed_checkpoint_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, saved: dict[str, Any], data: st.DataObject
) -> None:
    import torch.distributed.checkpoint as dcp

    folder = tmp_path_factory.getbasetemp() / "distributed"
    if not folder.exists():
        dcp.save({"model": dict(saved["model"]), "step": 2}, checkpoint_id=str(folder), no_dist=True)
        (folder / "table").write_bytes((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(mutated(data, (folder / "table").read_bytes()))
    survives(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I64", "X"]) | json_values,
        "shape": st.lists(st.integers(-2, 1 << 62), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-8, 1 << 62), min_size=2, max_size=2) | json_values,
    }
)


@MANY
@given(header=st.dictionaries(st.text(max_size=6), entries | json_values, max_size=4), data=st.binary(max_size=64))
def test_any_safetensors_header_is_read_or_refused(tmp_path: Path, header: Any, data: bytes) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + data)
    survives(tmp_path / "x")


@MANY
@given(
    index=st.dictionaries(st.just("weight_map"), st.dictionaries(st.text(max_size=4), json_values, max_size=3))
    | json_values
)
def test_any_index_is_read_or_refused(tmp_path: Path, index: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    survives(tmp_path / "model.safetensors.index.json")
    survives(tmp_path)


OPCODES = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]
GLOBALS = [
    f"c{module}\n{name}\n".encode()
    for module, name in (
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch", "FloatStorage"),
        ("torch", "Size"),
        ("collections", "OrderedDict"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("copyreg", "_reconstructor"),
        ("os", "system"),
        ("a.b", "C"),
        *(("builtins", name) for name in ("eval", "list", "bytes", "object", "range", "slice")),
    )
]


@settings(MANY, max_examples=3000)
@given(
    words=st.lists(
        st.sampled_from([*OPCODES, *GLOBALS, b"K\x01", b"X\x01\x00\x00\x00a", b"(", b"t", b"R", b"}", b"]"])
        | st.binary(max_size=3),
        max_size=24,
    )
)
def test_any_program_of_opcodes_is_read_or_refused(words: list[bytes]) -> None:
    with suppress(NotComparable):
        unpickle(b"\x80\x02" + b"".join(words) + b".", "x", no_storages)


@MANY
@given(value=json_values, protocol=st.integers(0, 5))
def test_plain_data_comes_back_through_any_protocol(value: Any, protocol: int) -> None:
    found, foreign = unpickle(pickle.dumps(value, protocol), "x", no_storages)
    assert repr(found) == repr(value) and not foreign
