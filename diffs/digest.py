"""A 16-byte digest of a tensor's dtype, shape and every bit, in order.

Any change changes it: one bit, a row swap, paired sign flips, two swapped values or blocks. Sums and exclusive-ors of
bit patterns, which others use, miss several of these. Equal digests are taken for equal tensors; two different tensors
share one by chance with probability 2**-128. Neither algorithm is used against an adversary.

Runs in the candidate's own environment: only the standard library and torch, and xxhash where it is installed.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from functools import lru_cache

import torch
from torch.nn.parameter import is_lazy

from diffs.verdict import NotComparable

try:
    import xxhash
except ImportError:
    xxhash = None  # type: ignore[assignment]

Buffer = bytes | ctypes.Array


def available() -> list[str]:
    """The algorithms that this environment can compute, fastest first."""
    return [name for name in _ALGORITHMS if name != "xxh3-128" or xxhash is not None]


def digest_tensor(tensor: torch.Tensor, algorithm: str) -> bytes:
    """The 16-byte digest of a tensor: dtype, shape, then the elements in row-major order.

    tensor: any strided tensor with memory, on any device, contiguous or not; gradients are not followed.

    Strides do not enter the digest: a transposed view has the digest of its contiguous copy.

    Raises:
        NotComparable: the tensor has no plain memory (sparse, meta, quantized, nested, a wrapper), or the algorithm
            is not available here.
    """
    plain = in_memory(tensor)
    count = plain.nbytes
    memory = (ctypes.c_char * count).from_address(plain.data_ptr()) if count else b""
    return _function(algorithm)(memory, plain.dtype, plain.shape)


def digest_bytes(data: bytes, algorithm: str) -> bytes:
    """The 16-byte digest of bytes that are no tensor.

    Raises:
        NotComparable: the algorithm is not available here.
    """
    return _function(algorithm)(data, None, ())


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its elements lie in row-major order in the CPU's memory, otherwise a copy that does.

    Raises:
        NotComparable: there is no such memory, with the reason.
    """
    if reason := refusal(tensor):
        raise NotComparable(reason)
    plain = tensor if is_plain(tensor) else tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    try:
        missing = plain.data_ptr() == 0 and plain.nbytes > 0
    except RuntimeError:  # a fake or a functional tensor
        missing = True
    if missing:
        raise NotComparable(f"{type(tensor).__name__} has no memory of its own: compare the tensors that it stands for")
    return plain


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor's elements lie in row-major order in the CPU's memory, without a pending operation."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def refusal(tensor: torch.Tensor) -> str | None:
    """Why a tensor has no plain memory that could be read element by element, or None."""
    if is_lazy(tensor):
        return "an uninitialized parameter has no shape yet: compare after a first forward"
    if tensor.is_meta:
        return "a meta tensor has no values: compare after its parameters are materialised"
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"a {layout} tensor can hold the same values in several forms: compare .to_dense()"
    if tensor.is_quantized:
        return "a quantized tensor is not its stored integers alone: compare .int_repr() and its scales"
    if tensor.is_nested:
        return "a nested tensor has no single shape: compare its .unbind() parts"
    return None


def _xxh3(data: Buffer, dtype: torch.dtype | None, shape: tuple[int, ...]) -> bytes:
    return xxhash.xxh3_128_digest(data, _seed(dtype, shape) if dtype else 0)


@lru_cache(maxsize=1 << 16)
def _seed(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return xxhash.xxh3_64_intdigest(_header(dtype, shape))


def _blake2b(data: Buffer, dtype: torch.dtype | None, shape: tuple[int, ...]) -> bytes:
    state = hashlib.blake2b(_header(dtype, shape) if dtype else b"", digest_size=16)
    state.update(data)
    return state.digest()


def _header(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{dtype} {tuple(shape)}\n".encode()


_ALGORITHMS: dict[str, Callable[[Buffer, torch.dtype | None, tuple[int, ...]], bytes]] = {
    "xxh3-128": _xxh3,
    "blake2b-128": _blake2b,
}


def _function(algorithm: str) -> Callable[[Buffer, torch.dtype | None, tuple[int, ...]], bytes]:
    function = _ALGORITHMS.get(algorithm)
    if function is None or (function is _xxh3 and xxhash is None):
        raise NotComparable(f"digest {algorithm!r} is not available here: use one of {', '.join(available())}")
    return function
