"""The values that samples are made of, by name: a function from (number, size) each.

Equal arguments make equal values in every process.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import os
import pathlib
import tempfile
import uuid
import warnings

import numpy as np
import torch
from PIL import Image

SIZES = {"small": 4, "medium": 900, "large": 12000}


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Box:
    left: int
    image: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("name", "value")
    name: str
    value: float


class Named(torch.Tensor):
    """A tensor class of the user's."""


class Matrix(np.ndarray):
    """An array class of the user's."""


def _numbers(number: int, count: int) -> torch.Tensor:
    return (torch.arange(count) + number * 13) % 100


def _even(size: str) -> int:
    return SIZES[size] // 4 * 4


def tensor_of(dtype: torch.dtype, number: int, size: str) -> torch.Tensor:
    return _numbers(number, SIZES[size]).to(dtype)


def _plane(number: int, size: str) -> torch.Tensor:
    return _numbers(number, _even(size)).float().reshape(4, -1)


def _expanded(number: int, size: str) -> torch.Tensor:
    return torch.tensor([[float(number)]]).expand(3, SIZES[size])


def _quantised(number: int, size: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(tensor_of(torch.float32, number, size), 0.5, 3, torch.qint8)


def _nested(number: int, size: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2) * number, torch.ones(number % 3 + 1)])


def _jagged(number: int, size: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2) * number, torch.ones(3)], layout=torch.jagged)


def _csr(number: int, size: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.tensor([[0.0, number], [1.0, 0.0]]).to_sparse_csr()


def _coo(number: int, size: str) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 0, 1]], torch.tensor([1.0, 2.0, number]), (4,))


def _channels_last(number: int, size: str) -> torch.Tensor:
    return _numbers(number, _even(size)).float().reshape(1, 2, 2, -1).contiguous(memory_format=torch.channels_last)


def _shared(number: int, size: str) -> torch.Tensor:
    return tensor_of(torch.float32, number, size).share_memory_()


def _inference(number: int, size: str) -> torch.Tensor:
    with torch.inference_mode():
        return tensor_of(torch.float32, number, size)


TENSORS = {
    **{
        f"tensor {name}": functools.partial(tensor_of, getattr(torch, name))
        for name in (
            "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128 "
            "complex32 float8_e4m3fn float8_e5m2"
        ).split()
        if hasattr(torch, name)
    },
    "tensor 0-d": lambda number, size: torch.tensor(float(number)),
    "tensor empty": lambda number, size: torch.empty(0, 3),
    "tensor strided": lambda number, size: _numbers(number, SIZES[size] * 2)[::2],
    "tensor transposed": lambda number, size: _plane(number, size).t(),
    "tensor permuted": lambda number, size: _numbers(number, _even(size)).reshape(2, 2, -1).permute(2, 0, 1),
    "tensor expanded": _expanded,
    "tensor overlapping": lambda number, size: _numbers(number, 12).float().unfold(0, 4, 2),
    "tensor channels last": _channels_last,
    "tensor part of larger": lambda number, size: _numbers(number, SIZES[size] * 3)[5 : 5 + SIZES[size]],
    "tensor leaf with grad": lambda number, size: tensor_of(torch.float32, number, size).requires_grad_(),
    "tensor computed with grad": lambda number, size: tensor_of(torch.float32, number, size).requires_grad_() * 2,
    "tensor coo": _coo,
    "tensor coo coalesced": lambda number, size: _coo(number, size).coalesce(),
    "tensor csr": _csr,
    "tensor nested": _nested,
    "tensor jagged": _jagged,
    "tensor quantised": _quantised,
    "tensor shared": _shared,
    "tensor parameter": lambda number, size: torch.nn.Parameter(tensor_of(torch.float32, number, size)),
    "tensor subclass": lambda number, size: tensor_of(torch.float32, number, size).as_subclass(Named),
    "tensor conj": lambda number, size: tensor_of(torch.complex64, number, size).conj(),
    "tensor neg": lambda number, size: torch.imag(tensor_of(torch.complex64, number, size).conj()),
    "tensor inference": _inference,
    "tensor meta": lambda number, size: torch.empty(3, device="meta"),
}


def array_of(dtype: str, number: int, size: str) -> np.ndarray:
    return ((np.arange(SIZES[size]) + number * 13) % 100).astype(dtype)


def _structured(number: int, size: str) -> np.ndarray:
    made = np.zeros(SIZES[size], dtype=[("a", "<f4"), ("b", "i2", (2,)), ("c", "S3")])
    made["a"], made["c"] = number, b"xy"
    return made


def _readonly(number: int, size: str) -> np.ndarray:
    made = array_of("f4", number, size)
    made.flags.writeable = False
    return made


@functools.cache
def _mapped_file(number: int) -> str:
    path = os.path.join(tempfile.gettempdir(), f"unjam-fuzz-{os.getuid()}-{number}.npy")
    if not os.path.exists(path):
        handle, partial = tempfile.mkstemp(suffix=".npy")
        os.close(handle)
        np.save(partial, array_of("f4", number, "medium"))
        os.replace(partial, path)
    return path


def _masked(number: int, size: str) -> np.ndarray:
    return np.ma.masked_greater(array_of("f4", number, "small"), 20)


ARRAYS = {
    **{
        f"array {dtype}": functools.partial(array_of, dtype)
        for dtype in "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ? c8 c16 >f4 >i2 U5 S4 m8[s] M8[D] g".split()
    },
    "array object": lambda number, size: np.array([number, "a", None], dtype=object),
    "array structured": _structured,
    "array 0-d": lambda number, size: np.array(number, dtype="f4"),
    "array empty": lambda number, size: np.empty((0, 3), dtype="f4"),
    "array fortran": lambda number, size: np.asfortranarray(array_of("f4", number, size).reshape(4, -1)),
    "array strided": lambda number, size: array_of("f4", number, size)[::2],
    "array reversed": lambda number, size: array_of("i4", number, size)[::-1],
    "array broadcast": lambda number, size: np.broadcast_to(np.float32(number), (3, 5)),
    "array readonly": _readonly,
    "array mapped": lambda number, size: np.load(_mapped_file(number % 3), mmap_mode="r"),
    "array mapped copy on write": lambda number, size: np.load(_mapped_file(number % 3), mmap_mode="c"),
    "array subclass": lambda number, size: array_of("f4", number, size).view(Matrix),
    "array masked": _masked,
    "array record": lambda number, size: np.rec.array([(number, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "scalar f4": lambda number, size: np.float32(number),
    "scalar i8": lambda number, size: np.int64(number),
    "scalar bool": lambda number, size: np.bool_(number % 2),
    "scalar datetime": lambda number, size: np.datetime64("2020-01-01") + number,
    "scalar str": lambda number, size: np.str_(f"n{number}"),
    "scalar void": lambda number, size: _structured(number, "small")[0],
}

OTHERS = {
    "int": lambda number, size: number,
    "int huge": lambda number, size: 2**70 + number,
    "float": lambda number, size: number / 3,
    "float nan": lambda number, size: float("nan"),
    "bool": lambda number, size: number % 2 == 0,
    "complex": lambda number, size: complex(number, 1),
    "str": lambda number, size: f"näme {number}",
    "str long": lambda number, size: f"{number}é" * SIZES[size],
    "bytes": lambda number, size: bytes([number % 256]) * SIZES[size],
    "bytearray": lambda number, size: bytearray([number % 256]) * SIZES[size],
    "none": lambda number, size: None,
    "ellipsis": lambda number, size: ...,
    "decimal": lambda number, size: decimal.Decimal(number) / 8,
    "fraction": lambda number, size: fractions.Fraction(number, 7),
    "path": lambda number, size: pathlib.PurePosixPath("a") / str(number),
    "date": lambda number, size: dt.date(2020, 1, 1 + number % 28),
    "uuid": lambda number, size: uuid.UUID(int=number),
    "set": lambda number, size: {number, number + 1},
    "frozenset": lambda number, size: frozenset([number]),
    "enum": lambda number, size: Colour(1 + number % 2),
    "int enum": lambda number, size: Level(1 + number % 2),
    "range": lambda number, size: range(number, number + 3),
    "slice": lambda number, size: slice(number, None),
    "empty list": lambda number, size: [],
    "empty dict": lambda number, size: {},
    "empty tuple": lambda number, size: (),
    "ragged list": lambda number, size: [1.0] * (number % 2 + 1),
    "dataclass": lambda number, size: Box(number, tensor_of(torch.float32, number, size)),
    "frozen dataclass": lambda number, size: Slotted(f"n{number}", number / 2),
    "deque": lambda number, size: collections.deque([number, number]),
    "counter": lambda number, size: collections.Counter({"a": number}),
    "default dict": lambda number, size: collections.defaultdict(int, a=number, b=2),
    "dtype": lambda number, size: torch.float16,
    "size": lambda number, size: torch.Size([number, 2]),
    "picture": lambda number, size: Image.new("RGB", (3, 2), (number % 256, 2, 3)),
    "class": lambda number, size: Colour,
    "function": lambda number, size: len,
    "exception": lambda number, size: ValueError("kept", number),
    "lambda": lambda number, size: lambda: number,
    "generator": lambda number, size: (one for one in [number]),
}

LEAVES = {**TENSORS, **ARRAYS, **OTHERS}
# what torch's default collate refuses, or torch itself cannot stack
_REFUSED = {
    *("tensor coo", "tensor coo coalesced", "tensor csr", "tensor nested", "tensor jagged", "tensor meta"),
    *("tensor computed with grad", "array object", "array structured", "array masked", "array record", "array g"),
    *("array >f4", "array >i2", "array U5", "array S4", "array m8[s]", "array M8[D]"),
    *("scalar datetime", "scalar str", "scalar void"),
}
_WORDS = ("int", "float", "bool", "str", "str long", "bytes", "empty list", "empty dict", "float nan", "int enum")
COLLATED = [name for name in (*TENSORS, *ARRAYS) if name not in _REFUSED] + [*_WORDS, "default dict"]
