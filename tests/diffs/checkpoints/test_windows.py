from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from diffs import tensor as tensors
from diffs.checkpoints import windows
from diffs.checkpoints.safetensors import read_tensors
from diffs.checkpoints.stored import Damaged, Span, Stored, cut

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows")


def scattered(path: Path, values: list[torch.Tensor], gaps: list[int], pieces: int) -> list[Stored]:
    """Tensors written one after another with gaps between, each in some pieces that lie in the file in turn."""
    content, found = bytearray(), []
    for value, gap in zip(values, gaps, strict=True):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        step = max(value.element_size(), len(raw) // pieces // value.element_size() * value.element_size())
        spans = []
        for start in range(0, len(raw), step):
            content += bytes([gap % 256]) * gap
            spans.append(Span(str(path), len(content), len(raw[start : start + step])))
            content += raw[start : start + step]
        found.append(Stored.at(value.dtype, tuple(value.shape), spans))
    path.write_bytes(content)
    return found


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_files_compare_as_the_tensors_in_memory_do(folder: Path, data: st.DataObject) -> None:
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    count = data.draw(st.integers(1, 6), "tensors")
    left, right = [], []
    for _ in range(count):
        dtype = data.draw(st.sampled_from(DTYPES))
        value = torch.randint(-100, 100, (data.draw(st.integers(0, 300)), 33), generator=draw).to(dtype)
        other = value.clone()
        places = st.lists(st.integers(0, max(0, value.numel() - 1)), max_size=3)
        for place in data.draw(places) if value.numel() else []:
            other.view(-1)[place] += 1
        left.append(value)
        right.append(other)
    sides = []
    for name, values in (("left", left), ("right", right)):
        gaps = data.draw(st.lists(st.sampled_from([0, 0, 1, 8, 5000]), min_size=count, max_size=count))
        sides.append(scattered(folder / name, values, gaps, data.draw(st.sampled_from([1, 1, 2, 7]))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "WINDOW_BYTES", data.draw(st.sampled_from([4096, 65536, 4 << 20])))
        patch.setattr(windows, "BLOCK_BYTES", data.draw(st.sampled_from([256, 4096])))
        found = windows.compare(list(zip(*sides, strict=True)))
    for one, a, b in zip(found, left, right, strict=True):
        expected = tensors.compare(a, b)
        assert one.relative_l2 == pytest.approx(expected.relative_l2, rel=1e-5)
        assert tensors.replace(one, relative_l2=0.0) == tensors.replace(expected, relative_l2=0.0)


def test_a_bit_in_the_last_byte_of_many_windows_is_found(tmp_path: Path) -> None:
    value = torch.arange(3 << 20, dtype=torch.float32)
    other = value.clone()
    other.view(torch.int32)[-1] ^= 1
    save_file({"a": value, "b": torch.ones(5)}, tmp_path / "x")
    save_file({"a": other, "b": torch.ones(5)}, tmp_path / "y")
    left, right = read_tensors(tmp_path / "x"), read_tensors(tmp_path / "y")
    a, b = windows.compare([(left[name], right[name]) for name in ("a", "b")])
    assert (a.differing, b.differing) == (1, 0) and a.worst is not None
    assert (a.worst.index, a.worst.ulp) == (((3 << 20) - 1,), 1)


def test_two_files_of_200_megabytes_take_no_memory_of_their_size(tmp_path: Path) -> None:
    value = torch.zeros(50 << 20)
    save_file({"a": value}, tmp_path / "x")
    value[::1000] = 1
    save_file({"a": value}, tmp_path / "y")
    del value
    pair = read_tensors(tmp_path / "x")["a"], read_tensors(tmp_path / "y")["a"]
    peak = Path("/proc/self/clear_refs")
    try:
        peak.write_text("5")  # the peak starts again from what is resident now
    except OSError:
        pytest.skip("the peak of memory cannot be reset here")
    before = _resident("VmRSS")
    assert windows.compare([pair])[0].differing == (50 << 20) // 1000 + 1
    assert _resident("VmHWM") - before < 40 << 10


def _resident(field: str) -> int:
    """Kilobytes, as the system counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = [int(line.split()[1]) for line in lines if line.startswith(field)]
    return found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1000)}, tmp_path / "x")
    save_file({"a": torch.zeros(1000)}, tmp_path / "y")
    pair = read_tensors(tmp_path / "x")["a"], read_tensors(tmp_path / "y")["a"]
    (tmp_path / "y").write_bytes(bytes(100))
    with pytest.raises(Damaged, match="y ends at byte 100"):
        windows.compare([pair])


def test_a_tensor_is_its_own_equal_without_being_read(tmp_path: Path) -> None:
    gone = Stored.at(torch.float32, (2,), [Span(str(tmp_path / "gone"), 0, 8)])
    assert windows.compare([(gone, gone)])[0].identical


def test_a_digest_depends_on_dtype_shape_and_content_alone(tmp_path: Path) -> None:
    values = [torch.arange(6.0), torch.arange(6.0), torch.arange(6.0).reshape(2, 3), torch.arange(6.0).double()]
    stored = scattered(tmp_path / "x", values, [0, 3, 8, 1], 2)
    digests = [windows.digest(one) for one in stored]
    assert digests[0] == digests[1] == windows.digest(Stored.of(values[0])) and len(set(digests)) == 3


def test_spans_are_cut_where_they_are_asked_to_be() -> None:
    spans = [Span("a", 10, 4), Span("b", 0, 8)]
    assert cut(spans, 2, 5) == [Span("a", 12, 2), Span("b", 0, 3)]
    assert cut(spans, 6, 6) == [Span("b", 2, 6)] and cut(spans, 0, 0) == []
    with pytest.raises(Damaged, match="1 bytes too short"):
        cut(spans, 3, 10)
