"""Reads pickles without running anything that they name.

A pickle is a program that builds an object. Here the only things that it can call are constructors of tensors, arrays
and plain data, in versions of our own; an object of any other class becomes a `Record` of what it is made of, and its
module is never imported. A pickle that calls functions, or names modules that no data needs, is refused.

Python's own unpickler in C would do, but a few bytes make it allocate gigabytes. The one in Python reads before it
allocates, but for one opcode, which is replaced here. Nor may a few bytes take hours: a tuple that holds another one
twice, and so on, is hashed and printed once for each way through it.
"""

from __future__ import annotations

import io
import pickle
import reprlib
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch

from diffs.checkpoints.stored import Damaged, Span, Unsafe, strided

LARGEST_PICKLE = 256 << 20  # bytes; what a checkpoint holds besides tensors is far smaller
SMALL = 64 << 20  # bytes; a view that repeats elements may be this large
LARGEST_TUPLE = 1_000_000  # values in a tuple and the tuples within it, counted once for each way to them

Locate = Callable[[Any, int], Span]


class Record:
    """An object of a class that was not imported: what its pickle says of it.

    name: the class, with its module. arguments: what it was called with. state: what was set on it afterwards.
    items: what was appended to it, or stored in it as (key, value).
    """

    name = ""

    def __new__(cls, *arguments: Any, **options: Any) -> Record:
        made = super().__new__(cls)
        made.arguments = [*arguments, *options.items()]
        made.state = None
        made.items = []
        return made

    arguments: list[Any]
    state: Any
    items: list[Any]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Iterable[Any]) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def plain(self) -> Any:
        """The record as plain data: text where it has arguments alone, as an enum's member does, otherwise a table."""
        if self.state is None and not self.items and all(isinstance(one, (str, int, float)) for one in self.arguments):
            return f"{self.name}({', '.join(map(repr, self.arguments))})"
        state = self.state if isinstance(self.state, dict) else {} if self.state is None else {"state": self.state}
        more = {"arguments": self.arguments} if self.arguments else {}
        return {"class": self.name, **more, **state, **({"items": self.items} if self.items else {})}


class _Class(type):
    """The type of the classes that stand for classes which were not imported."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        module, _, name = cls.name.rpartition(".")  # type: ignore[attr-defined]
        if not name.lstrip("_")[:1].isupper() and module.partition(".")[0] not in _DATA:
            raise Unsafe(f"calls {cls.name}")  # type: ignore[attr-defined]
        return super().__call__(*arguments, **options)


class _Array:
    """A numpy array in the making: its dtype and bytes come after it."""

    content: Any = None

    def take(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        kind = dtype.numpy() if isinstance(dtype, _Dtype) else None
        if kind is None or not isinstance(data, (bytes, bytearray)):
            self.content = f"array of {_code(dtype)}, shape {reprlib.repr(tuple(shape))}"
            return
        self.content = np.frombuffer(bytes(data), kind).reshape(tuple(shape), order="F" if fortran else "C")


class _Dtype:
    """A numpy dtype in the making: its byte order comes after it."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = code if isinstance(code, str) else reprlib.repr(code), "="

    def take(self, state: Any) -> None:
        self.order = state[1]

    def numpy(self) -> np.dtype[Any] | None:
        """The dtype, None if it is not one of plain numbers."""
        order = self.order if self.order in ("<", ">") else ""
        try:
            found = np.dtype(order + self.code.lstrip("<>|="))
        except TypeError:
            return None
        return found if found.kind in "biufc" and found.itemsize <= 16 else None


class _Storage:
    """Where a storage lies, and what its elements are."""

    def __init__(self, span: Span, dtype: torch.dtype) -> None:
        self.span, self.dtype = span, dtype


def _then_weighed(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def loads(reader: Unpickler) -> None:
        load(reader)
        reader.weigh()

    return loads


class Unpickler(pickle._Unpickler):  # type: ignore[misc, name-defined]
    """Reads one pickle.

    source: what is read. path: its name, for messages. locate: says where the storage with a key lies, which has some
        number of bytes.
    foreign: the classes and functions that the pickle names and that are not known here.

    Raises (`load`):
        Unsafe: it calls a function.
        Damaged: it is no valid pickle, with the byte where it breaks.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]

    def __init__(self, source: BinaryIO, path: str, locate: Locate) -> None:
        super().__init__(source)
        self.source, self.path, self.locate = source, path, locate
        self.foreign: set[str] = set()
        self.sizes: dict[int, tuple[tuple[Any, ...], int]] = {}

    def load(self) -> Any:
        """The object, with a `Stored` for each tensor."""
        begin = self.source.tell()
        try:
            return super().load()
        except Unsafe as error:
            byte = self.source.tell() - begin
            raise Unsafe(f"{self.path}: its pickle {error} at byte {byte:,}; nothing of it was run") from None
        except Exception as error:
            byte = self.source.tell() - begin
            reason = str(error) if isinstance(error, Damaged) else f"{type(error).__name__}: {error}"
            raise Damaged(f"{self.path}: its pickle breaks at byte {byte:,}: {reason:.300}") from None

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a class or function; never the thing itself."""
        if self.proto < 3:  # type: ignore[attr-defined]  # the names of Python 2
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        known = _KNOWN.get((module, name))
        if known is not None:
            return self._tensor if known == "tensor" else known
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if module in ("torch", "torch.cuda", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        full = f"{module}.{name}"
        if module.partition(".")[0] in _NO_DATA or full in _NO_DATA:
            raise Unsafe(f"names {full}")
        if not full.startswith(_HARMLESS):
            self.foreign.add(full)
        return _Class(name, (Record,), {"name": full})

    def persistent_load(self, pid: Any) -> Any:
        """A storage, by its key."""
        kind, storage, key, _, count = pid[:5]
        if kind != "storage" or not isinstance(storage, torch.dtype) or type(count) is not int or count < 0:
            raise Damaged(f"a storage is described as {reprlib.repr(pid)}")
        return _Storage(self.locate(key, count * storage.itemsize), storage)

    def _tensor(self, storage: Any, offset: int, shape: Any, stride: Any, *rest: Any) -> Any:
        if not isinstance(storage, _Storage):
            raise Damaged(f"a tensor has no storage but {reprlib.repr(storage)}")
        # An untyped storage has its dtype after hooks and metadata.
        dtype = next((one for one in rest if isinstance(one, torch.dtype)), storage.dtype)
        numbers = [offset, *shape, *stride]
        if any(type(number) is not int for number in numbers) or len(shape) != len(stride):
            found = f"offset {reprlib.repr(offset)}, shape {reprlib.repr(shape)} and stride {reprlib.repr(stride)}"
            raise Damaged(f"a tensor has the {found}")
        return strided(dtype, storage.span, offset, tuple(shape), stride, SMALL)

    def load_build(self) -> None:
        """Set a state on what may have one."""
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        state = stack.pop()
        instance = stack[-1]
        if isinstance(instance, (_Array, _Dtype)):
            instance.take(state)
        elif isinstance(instance, Record):
            instance.state = state
        elif not isinstance(instance, OrderedDict):  # its attributes, such as a state_dict's versions, are no content
            raise Damaged(f"a state is set on {type(instance).__name__}")

    dispatch[pickle.BUILD[0]] = load_build

    def load_bytearray8(self) -> None:
        """A bytearray, made of what is there."""
        size = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        content = self.read(size)  # type: ignore[attr-defined]
        if len(content) < size:
            raise Damaged(f"a bytearray of {size:,} bytes ends after {len(content):,}")
        self.append(bytearray(content))  # type: ignore[attr-defined]

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def weigh(self) -> None:
        """Refuse what was just made if it is a tuple of too many values."""
        made = self.stack[-1]  # type: ignore[attr-defined]
        inner = [item for item in made if type(item) is tuple] if type(made) is tuple else []
        if not inner:
            return
        size = len(made) + sum(self.sizes.get(id(item), (item, len(item)))[1] for item in inner)
        if size > LARGEST_TUPLE:
            raise Damaged(f"a tuple holds {size:,} values, {LARGEST_TUPLE:,} are read at most")
        self.sizes[id(made)] = made, size  # kept, so that no other object can have its address

    for opcode in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.REDUCE):
        dispatch[opcode[0]] = _then_weighed(dispatch[opcode[0]])
    del opcode


def unpickle(content: bytes, path: str, locate: Locate) -> tuple[Any, set[str]]:
    """The object in a pickle, and what it names that is not known here.

    Raises:
        Unsafe, Damaged: as `Unpickler` says.
    """
    if len(content) > LARGEST_PICKLE:
        raise Damaged(f"{path}: its pickle has {len(content):,} bytes, {LARGEST_PICKLE:,} are read at most")
    reader = Unpickler(io.BytesIO(content), path, locate)
    return reader.load(), reader.foreign


def no_storages(key: Any, size: int) -> Span:
    """Where no storage can be."""
    raise Damaged(f"a storage of {size:,} bytes is named in a file that has none")


def _first(value: Any, *_: Any) -> Any:
    return value


def _subclass(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor of a subclass, without what makes it one."""
    return function(*arguments)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode({"latin1": "latin1", "utf8": "utf-8"}.get(encoding, "ascii"))


def _bytes(content: Any = b"", encoding: str | None = None) -> bytes:
    if isinstance(content, str):
        return content.encode("latin1")
    if not isinstance(content, (bytes, bytearray, list, tuple)):
        raise Damaged("bytes are made of no bytes")
    return bytes(content)


def _scalar(dtype: Any, data: Any = b"") -> Any:
    kind = dtype.numpy() if isinstance(dtype, _Dtype) else None
    if kind is None or not isinstance(data, bytes) or len(data) != kind.itemsize:
        return f"scalar of {_code(dtype)}"
    return np.frombuffer(data, kind)[0].item()


def _code(dtype: Any) -> str:
    return dtype.code if isinstance(dtype, _Dtype) else reprlib.repr(dtype)


def _table(*arguments: Any) -> dict[Any, Any]:
    """What stands for a defaultdict: a dictionary without the default."""
    return dict(*arguments[1:])


def _device(*arguments: Any) -> str:
    return "device(" + ", ".join(map(reprlib.repr, arguments)) + ")"


def _range(*arguments: Any) -> str:
    """A range as text: a list made of one may fill memory."""
    return "range(" + ", ".join(map(reprlib.repr, arguments)) + ")"


def _reconstructed(kind: Any, base: Any, state: Any) -> Any:
    if not isinstance(kind, _Class):
        raise Damaged(f"an object of {kind!r:.100} is put together")
    return kind.__new__(kind) if state is None else kind.__new__(kind, state)  # type: ignore[call-overload]


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): _table,
    ("collections", "Counter"): lambda *arguments: dict(*arguments),
    ("torch", "Size"): lambda sizes=(): tuple(sizes),
    ("torch", "device"): _device,
    ("torch._utils", "_rebuild_tensor"): "tensor",
    ("torch._utils", "_rebuild_tensor_v2"): "tensor",
    ("torch._utils", "_rebuild_tensor_v3"): "tensor",
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("torch._tensor", "_rebuild_from_type_v2"): _subclass,
    ("torch.nn.parameter", "Parameter"): _first,
    ("torch", "Tensor"): _Class("Tensor", (Record,), {"name": "torch.Tensor"}),
    ("torch.serialization", "_get_layout"): str,
    ("_codecs", "encode"): _encode,
    ("copyreg", "_reconstructor"): _reconstructed,
    **{
        ("builtins", name): made
        for name, made in {
            "set": set,
            "frozenset": frozenset,
            "list": list,
            "dict": dict,
            "tuple": tuple,
            "int": int,
            "float": float,
            "bool": bool,
            "complex": complex,
            "str": str,
            "bytes": _bytes,
            "bytearray": _bytes,
            "slice": slice,
            "range": _range,
            "object": _Class("object", (Record,), {"name": "object"}),
        }.items()
    },
    **{
        (module, name): made
        for module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy._core.numeric")
        for name, made in {
            "_reconstruct": lambda *_: _Array(),
            "ndarray": "ndarray",
            "dtype": _Dtype,
            "scalar": _scalar,
        }.items()
    },
}

_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
    "TypedStorage": torch.uint8,
}

# Modules whose calls make plain data although their names are in lower case.
_DATA = frozenset(
    {"datetime", "pathlib", "decimal", "fractions", "uuid", "functools", "types", "numpy", "random", "re"}
)

# Classes of plain data, although torch.load with weights_only=True does not know them.
_HARMLESS = ("torch.distributed.checkpoint.", "pathlib.", "datetime.", "decimal.", "fractions.", "uuid.", "argparse.")

# What no data needs. Nothing here is ever run, whether it stands in this list or not: the list is for the message.
_NO_DATA = frozenset(
    {
        "os", "posix", "nt", "sys", "subprocess", "shutil", "socket", "pty", "runpy", "importlib", "ctypes", "marshal",
        "pickle", "_pickle", "code", "codeop", "webbrowser", "pdb", "bdb", "timeit", "cProfile", "profile", "signal",
        "urllib", "http", "ftplib", "smtplib", "requests", "pip", "asyncio", "multiprocessing", "threading", "_thread",
        "tempfile", "zipimport", "inspect", "gc", "atexit", "builtins", "torch.hub", "torch.load",
        "torch.serialization", "torch.jit", "types.FunctionType", "types.CodeType", "torch.utils.cpp_extension",
        "functools.reduce", "operator", "_operator", "io", "_io", "nturl2path", "distutils", "setuptools", "numpy.f2py",
    }
)  # fmt: skip
