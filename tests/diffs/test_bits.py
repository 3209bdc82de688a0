from __future__ import annotations

import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffs.bits import BLOCK_BYTES, blocks, identical, mismatch
from diffs.verdict import NotComparable


def patterns(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).view(torch.float32)


def test_signed_zeros_differ() -> None:
    assert not identical(torch.tensor(0.0), torch.tensor(-0.0))


def test_nan_equals_nan_of_the_same_bits_only() -> None:
    assert identical(patterns(0x7FC00000), patterns(0x7FC00000))
    assert not identical(patterns(0x7FC00000), patterns(0x7FC00001))
    assert not identical(patterns(0x7FC00000), patterns(-0x400000))


def test_dtype_and_shape_must_agree() -> None:
    assert mismatch(torch.ones(2), torch.ones(2).half()) == "dtype float32 against float16"
    assert mismatch(torch.ones(2, 3), torch.ones(3, 2)) == "shape (2, 3) against (3, 2)"
    assert not identical(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert not identical(torch.zeros(0, 2), torch.zeros(2, 0))


def test_nothing_equals_nothing() -> None:
    assert identical(torch.zeros(0, 3), torch.ones(0, 3))


@pytest.mark.parametrize("place", [0, 12_345_678, BLOCK_BYTES // 4 - 1, BLOCK_BYTES // 4, 3 * BLOCK_BYTES - 1])
def test_one_bit_anywhere_is_found(place: int) -> None:
    reference = torch.zeros(3 * BLOCK_BYTES)
    candidate = reference.clone()
    candidate.view(torch.int32)[place] = 1
    assert not identical(reference, candidate)
    assert identical(reference, reference.clone())


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.integers(1, 40),
    st.permutations(range(4)),
    st.permutations(range(4)),
)
@settings(max_examples=100, deadline=None)
def test_blocks_put_together_are_the_tensor(shape, size: int, one: list[int], other: list[int]) -> None:
    """Whatever the strides of the two: pieces come in row-major order and miss nothing."""
    reference = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)

    def strided(order: list[int]) -> torch.Tensor:
        axes = [axis for axis in order if axis < len(shape)]
        inverse = sorted(range(len(shape)), key=lambda place: axes[place])
        return reference.permute(axes).contiguous().permute(inverse)

    pieces = list(blocks(strided(one), strided(other), 4 * size))
    assert torch.equal(torch.cat([left for _, left, _ in pieces] or [reference.view(-1)]), reference.view(-1))
    assert all(torch.equal(left, right) and left.is_contiguous() for _, left, right in pieces)
    assert all(int(left[0]) == start and len(left) <= size for start, left, _ in pieces)


def test_a_transposed_tensor_is_compared_in_blocks() -> None:
    reference = torch.randn(3000, 2000)
    view = reference.t().contiguous().t()
    candidate = reference.clone()
    assert max(left.nbytes for _, left, _ in blocks(view, candidate, 1 << 20)) <= 1 << 20
    assert identical(view, candidate)
    candidate[2999, 1999] += 1
    assert not identical(view, candidate)


def test_contiguous_tensors_are_compared_where_they_lie() -> None:
    reference, candidate = torch.zeros(1 << 20), torch.zeros(1 << 20)
    tracemalloc.start()
    for _, left, right in blocks(reference, candidate, 1 << 20):
        assert left.untyped_storage().data_ptr() == reference.untyped_storage().data_ptr()
        assert right.untyped_storage().data_ptr() == candidate.untyped_storage().data_ptr()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_sparse_and_meta_tensors_are_refused() -> None:
    with pytest.raises(NotComparable, match="sparse_coo"):
        identical(torch.eye(2).to_sparse(), torch.eye(2).to_sparse())
    with pytest.raises(NotComparable, match="meta"):
        identical(torch.eye(2), torch.eye(2, device="meta"))
