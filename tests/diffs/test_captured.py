from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diffs.captured import read_tensors
from diffs.digest import digest_tensor
from diffs.trace import open_trace
from diffs.verdict import NotComparable
from oracle.recorder.trace import TraceWriter
from reference_loop.moments import Address


def parameter(update: int, name: str = "w") -> Address:
    return Address(update, -1, "update", "parameter", name)


def write(folder: Path, tensors: dict[Address, torch.Tensor], budget: int = 1 << 20) -> None:
    writer = TraceWriter(folder, capture=lambda address: address.kind == "parameter", budget_bytes=budget)
    for address, tensor in tensors.items():
        writer.put(address, tensor)
        writer.commit()
    writer.close()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
        torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    ],
    ids=str,
)  # fmt: skip
def test_a_captured_tensor_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    raw = torch.arange(6 * dtype.itemsize, dtype=torch.uint8)
    tensors = {
        parameter(0): (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(2, 3).t(),
        parameter(1): torch.zeros((0, 3), dtype=dtype),
        parameter(2): torch.ones((), dtype=torch.float32).to(dtype),
    }
    write(tmp_path, tensors)
    captured = read_tensors(tmp_path)
    assert list(captured) == list(tensors)
    for address, tensor in tensors.items():
        assert captured[address].dtype == dtype
        assert digest_tensor(captured[address], "blake2b-128") == digest_tensor(tensor, "blake2b-128")


def test_tensors_of_one_commit_share_a_file_that_others_can_read(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, capture=lambda address: address.kind == "parameter", budget_bytes=1 << 20)
    half, whole = torch.ones(3).half(), torch.arange(4.0)
    writer.put(parameter(0, "half"), half)
    writer.put(Address(0, -1, "update", "buffer", "b"), torch.ones(1))
    writer.put(parameter(0, "whole"), whole)
    writer.close()
    assert [path.name for path in (tmp_path / "tensors").iterdir()] == ["000000.safetensors"]
    loaded = load_file(tmp_path / "tensors" / "000000.safetensors")
    assert set(loaded) == {"0 0.-1.update.parameter.half", "2 0.-1.update.parameter.whole"}
    assert torch.equal(loaded["2 0.-1.update.parameter.whole"], whole)
    assert set(read_tensors(tmp_path)) == {parameter(0, "half"), parameter(0, "whole")}


def test_what_is_captured_does_not_change_with_the_run(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, capture=lambda address: True, budget_bytes=1 << 20)
    weight = torch.zeros(3)
    for update in range(3):
        writer.put(parameter(update), weight)
        weight += 1
    writer.close()
    assert [tensor[0].item() for tensor in read_tensors(tmp_path).values()] == [0.0, 1.0, 2.0]


def test_repeated_addresses_keep_their_tensors(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, capture=lambda address: True, budget_bytes=1 << 20)
    for value in (1.0, 2.0):
        writer.put(parameter(0), torch.tensor([value]))
    writer.close()
    captured = read_tensors(tmp_path)
    assert captured[parameter(0)].item() == 1.0 and captured[parameter(0, "w#2")].item() == 2.0


def test_capture_stops_at_the_budget_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, {parameter(u): torch.zeros(10) for u in range(5)}, budget=100)
    assert list(read_tensors(tmp_path)) == [parameter(0), parameter(1)]
    with open_trace(tmp_path) as trace:
        assert trace.manifest["captured"] == {"tensors": 2, "bytes": 80, "left_out": 3}
        assert len(trace) == 5


def test_without_a_budget_nothing_is_captured(tmp_path: Path) -> None:
    write(tmp_path, {parameter(0): torch.zeros(1)}, budget=0)
    assert not (tmp_path / "tensors").exists() and len(read_tensors(tmp_path)) == 0


def test_tensors_of_several_ranks_are_told_apart(tmp_path: Path) -> None:
    for rank in range(2):
        writer = TraceWriter(tmp_path, rank, capture=lambda address: True, budget_bytes=1 << 20)
        writer.put(parameter(0)._replace(rank=rank), torch.tensor([float(rank), 9.0]))
        writer.close()
    captured = read_tensors(tmp_path)
    assert [captured[parameter(0)._replace(rank=rank)][0].item() for rank in range(2)] == [0.0, 1.0]


def test_looking_for_an_address_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {parameter(0): torch.zeros(1)})
    captured = read_tensors(tmp_path)
    (tmp_path / "tensors" / "000000.safetensors").unlink()
    assert parameter(0) in captured and parameter(1) not in captured
    with pytest.raises(NotComparable, match="cannot be read"):
        captured[parameter(0)]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {parameter(0): torch.zeros(1)})
    (tmp_path / "tensors" / "000000.safetensors").write_bytes(b"no")
    with pytest.raises(NotComparable, match=r"000000\.safetensors cannot be read"):
        read_tensors(tmp_path)
