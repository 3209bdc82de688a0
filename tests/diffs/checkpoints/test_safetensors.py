from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffs.checkpoints.files import Files
from diffs.checkpoints.safetensors import read_tensors
from diffs.checkpoints.stored import Damaged


def written(path: Path, header: Any, data: bytes = b"") -> Path:
    """A file with a header of our choice: an object, or the header's own bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[Any], start: Any, stop: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_tensors_are_those_that_the_library_reads(tmp_path: Path) -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
    tensors = {f"a.{dtype}": (torch.arange(12) % 2).reshape(3, 4).to(dtype) for dtype in dtypes}
    tensors |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(1.5)}
    save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    ours, theirs = read_tensors(tmp_path / "x.safetensors"), load_file(tmp_path / "x.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, tuple(theirs[name].shape))
        assert torch.equal(tensor.tensor(), theirs[name])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry("F32", [3], 0, 8)}, "its bytes are said to be 0 to 8"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, "overlaps"),
        ({"a": entry("F32", [1], 4, 8)}, "leaves a gap"),
        ({"a": entry("F32", [1 << 40], 0, 4 << 40)}, "inside the tensor 'a'"),
        ({"a": entry("F32", [-2, -1], 0, 8)}, "its bytes are said to be"),
        ({"a": entry("F32", [True, 2], 0, 8)}, "its bytes are said to be"),
        ({"a": entry("F32", [2.0], 0, 8)}, "its bytes are said to be"),
        ({"a": entry("X9", [2], 0, 8)}, "dtype 'X9'"),
        ({"a": {"dtype": "F32"}}, "entry for 'a'"),
        ({"a": 3}, "entry for 'a'"),
        ({"a": entry("F32", [1], 0, 4)}, "the tensors end at byte"),
        (b'{"a": 1', "no valid JSON"),
        (b'{"a": {}, "a": {}}', "occurs twice"),
        (b"{" + b'"a":[' * 100_000, "no valid JSON"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: Any, message: str) -> None:
    with pytest.raises(Damaged, match=message):
        read_tensors(written(tmp_path / "x", header, bytes(8)))


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes((1 << 40).to_bytes(8, "little") + b'{"a"')
    with pytest.raises(Damaged, match=r"1,099,511,627,776 bytes, the file has 12"):
        Files(tmp_path).load("x")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\u202eb", "a\x7f", "\x00"])
def test_a_name_with_control_characters_is_refused(tmp_path: Path, name: str) -> None:
    written(tmp_path / "x", {name: entry("F32", [2], 0, 8)}, bytes(8))
    with pytest.raises(Damaged, match="control character") as caught:
        Files(tmp_path).load("x")
    assert str(caught.value).isprintable()


def test_a_cut_file_is_named_with_the_tensor_where_it_breaks(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(100), "b": torch.zeros(100)}, tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(whole[:-4])
    with pytest.raises(Damaged, match=f"ends at byte {len(whole) - 4:,}, inside the tensor 'b'"):
        read_tensors(tmp_path / "x")
