from __future__ import annotations

import hashlib
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffs import digest
from diffs.digest import available, digest_bytes, digest_tensor
from diffs.verdict import NotComparable

ALGORITHMS = available()
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def filled(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Random bits as a tensor."""
    draw = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 256
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(high, (count,), generator=draw, dtype=torch.uint8).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    return request.param


def flip_bit(tensor: torch.Tensor, draw: random.Random) -> None:
    flat = bits(tensor).view(-1)
    place, bit = draw.randrange(len(flat)), draw.randrange(32)
    flat[place] ^= torch.tensor(-(1 << 31) if bit == 31 else 1 << bit, dtype=torch.int32)


def one_ulp(tensor: torch.Tensor, draw: random.Random) -> None:
    flat = bits(tensor).view(-1)
    flat[draw.randrange(len(flat))] += 1


def swap_rows(tensor: torch.Tensor, draw: random.Random) -> None:
    first, second = draw.sample(range(len(tensor)), 2)
    tensor[[first, second]] = tensor[[second, first]]


def flip_two_signs(tensor: torch.Tensor, draw: random.Random) -> None:
    flat = tensor.view(-1)
    flat[draw.sample(range(len(flat)), 2)] *= -1


def swap_two_values(tensor: torch.Tensor, draw: random.Random) -> None:
    flat = tensor.view(-1)
    first, second = draw.sample(range(len(flat)), 2)
    flat[[first, second]] = flat[[second, first]]


def repeat_a_corruption(tensor: torch.Tensor, draw: random.Random) -> None:
    flat = bits(tensor).view(-1)
    flat[draw.sample(range(len(flat)), 2)] ^= 1 << draw.randrange(31)


def change_a_row(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor[draw.randrange(len(tensor))] += 1.0


CHANGES = [
    flip_bit, one_ulp, swap_rows, flip_two_signs, swap_two_values, repeat_a_corruption, change_a_row,
]  # fmt: skip


def test_ten_thousand_random_changes_all_change_the_digest(algorithm: str) -> None:
    draw = random.Random(0)
    for trial in range(10_000):
        rows, columns = draw.randrange(2, 12), draw.randrange(1, 12)
        tensor = torch.randn(rows, columns)
        change = CHANGES[trial % len(CHANGES)]
        before, digest_before = tensor.clone(), digest_tensor(tensor, algorithm)
        change(tensor, draw)
        if not torch.equal(bits(before), bits(tensor)):
            assert digest_tensor(tensor, algorithm) != digest_before, (trial, change.__name__)


def test_swapped_blocks_change_the_digest(algorithm: str) -> None:
    block = 32 << 10
    tensor = torch.randn(4 * block)
    swapped = torch.cat([tensor[2 * block : 3 * block], tensor[block : 2 * block], tensor[:block], tensor[3 * block :]])
    assert digest_tensor(tensor, algorithm) != digest_tensor(swapped, algorithm)


def test_a_change_in_any_row_changes_the_digest(algorithm: str) -> None:
    tensor = torch.randn(300, 7)
    seen = {digest_tensor(tensor, algorithm)}
    for row in range(300):
        bits(tensor)[row, row % 7] ^= 1
        seen.add(digest_tensor(tensor, algorithm))
        bits(tensor)[row, row % 7] ^= 1
    assert len(seen) == 301


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_bit_of_any_dtype_changes_the_digest(dtype: torch.dtype, algorithm: str) -> None:
    tensor = filled(dtype, 3)
    raw = tensor.view(torch.uint8)
    seen = {digest_tensor(tensor, algorithm)}
    for place in range(len(raw)):
        for bit in range(1 if dtype == torch.bool else 8):
            raw[place] ^= 1 << bit
            seen.add(digest_tensor(tensor, algorithm))
            raw[place] ^= 1 << bit
    assert len(seen) == 1 + len(raw) * (1 if dtype == torch.bool else 8)


def test_signed_zeros_and_nan_payloads_differ(algorithm: str) -> None:
    values = torch.tensor([0, -(1 << 31), 0x7FC00000, 0x7FC00001, -0x400000], dtype=torch.int32).view(torch.float32)
    assert len({digest_tensor(value, algorithm) for value in values}) == 5


def test_dtype_and_shape_enter_the_digest(algorithm: str) -> None:
    zeros = [torch.zeros(shape) for shape in [(), (1,), (1, 1), (6,), (2, 3), (3, 2), (0,), (0, 3), (3, 0)]]
    others = [zeros[3].view(torch.int32), zeros[3].to(torch.float16), torch.zeros(0, dtype=torch.int64)]
    assert len({digest_tensor(tensor, algorithm) for tensor in zeros + others}) == len(zeros + others)


@given(st.lists(st.integers(0, 4), min_size=0, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_strides_do_not_enter_the_digest(shape: list[int], draw: random.Random) -> None:
    tensor = torch.randn(shape)
    axes = list(range(len(shape)))
    draw.shuffle(axes)
    view = tensor.permute(axes)
    copy = torch.empty(view.shape).copy_(view)
    for algorithm in ALGORITHMS:
        assert digest_tensor(view, algorithm) == digest_tensor(copy, algorithm)


def test_pending_conjugations_and_negations_are_carried_out(algorithm: str) -> None:
    conjugate = filled(torch.complex64, 5).conj()
    assert digest_tensor(conjugate, algorithm) == digest_tensor(conjugate.resolve_conj(), algorithm)
    assert digest_tensor(conjugate.imag, algorithm) == digest_tensor(conjugate.imag.clone(), algorithm)


def test_a_slice_is_read_from_its_own_start(algorithm: str) -> None:
    tensor = torch.arange(10.0)
    assert digest_tensor(tensor[3:7], algorithm) == digest_tensor(tensor[3:7].clone(), algorithm)


def test_a_parameter_has_the_digest_of_its_data(algorithm: str) -> None:
    parameter = torch.nn.Parameter(torch.randn(3))
    assert digest_tensor(parameter, algorithm) == digest_tensor(parameter.data, algorithm)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.eye(2).to_sparse(), "sparse_coo tensor"),
        (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr tensor"),
        (lambda: torch.eye(2, device="meta"), "meta tensor has no values"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), "nested"),
        (torch.nn.parameter.UninitializedParameter, "no shape yet"),
    ],
)
def test_tensors_without_plain_memory_are_refused_with_the_reason(make, reason: str) -> None:
    with pytest.raises(NotComparable, match=reason):
        digest_tensor(make(), ALGORITHMS[0])


def test_a_tensor_whose_storage_was_freed_is_refused() -> None:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(NotComparable, match="no memory of its own"):
        digest_tensor(tensor, ALGORITHMS[0])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_fake_tensor_is_refused() -> None:
    with torch._subclasses.FakeTensorMode(), pytest.raises(NotComparable):
        digest_tensor(torch.ones(4), ALGORITHMS[0])


def test_an_unknown_algorithm_is_refused_with_those_there_are() -> None:
    with pytest.raises(NotComparable, match=r"'md5' is not available here: use one of .*blake2b-128"):
        digest_bytes(b"", "md5")


def test_without_xxhash_the_standard_library_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "xxhash", None)
    assert available() == ["blake2b-128"]
    with pytest.raises(NotComparable, match="xxh3-128"):
        digest_tensor(torch.ones(1), "xxh3-128")


def test_the_blake2b_digest_is_what_the_documentation_says() -> None:
    tensor = torch.tensor([[1.0, 2.0]])
    expected = hashlib.blake2b(b"torch.float32 (1, 2)\n" + tensor.numpy().tobytes(), digest_size=16).digest()
    assert digest_tensor(tensor, "blake2b-128") == expected


def test_the_xxh3_digest_is_what_the_documentation_says() -> None:
    xxhash = pytest.importorskip("xxhash")
    tensor = torch.tensor([[1.0, 2.0]])
    seed = xxhash.xxh3_64_intdigest(b"torch.float32 (1, 2)\n")
    assert digest_tensor(tensor, "xxh3-128") == xxhash.xxh3_128_digest(tensor.numpy().tobytes(), seed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_on_a_device_has_the_digest_of_its_copy(algorithm: str) -> None:
    tensor = torch.randn(1000)
    assert digest_tensor(tensor.cuda(), algorithm) == digest_tensor(tensor, algorithm)
