"""Datasets that stay in mapped files: all processes share one copy in the system's page cache."""

from __future__ import annotations

import bisect
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from unjam.shared.arrays import SharedArray
from unjam.shared.buffer import MAGIC, open_file
from unjam.shared.lists import SharedList

_RAW = (".bin", ".raw", ".dat")
# the limit of the safetensors library
MOST_HEADER = 100_000_000
_ARROW = (".arrow", ".feather", ".ipc")
# safetensors type names; types that numpy lacks are read as integers of the same size
_SAFE = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4",
    "U16": "u2", "U8": "u1", "BOOL": "?", "C64": "c8", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
}  # fmt: skip
_AS_TORCH = {
    "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip


class Mapped:
    """The rows of a file. It is pickled as its path, and each process maps the file itself."""

    def __init__(self, path: str, rows: Any, made: tuple[Any, ...]) -> None:
        self.path = path
        self._made = made
        self._rows = rows
        self._count = len(rows)
        # another process must find the same form
        self.form = (self._count, str(getattr(rows, "dtype", "")), tuple(getattr(rows, "shape", ()))[1:])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"row {index} of {self._count} in {self.path}")
        return as_sample(self._rows[place])

    def __repr__(self) -> str:
        return f"mapped({self.path!r}, {self._count:,} rows)"

    def __reduce__(self) -> Any:
        return _again, (self.form, *self._made)


def _again(form: tuple[Any, ...], path: str, dtype: Any, shape: Any, trusted: bool = False) -> Mapped:  # noqa: FBT001, FBT002 - called by pickle
    rows = mapped(path, dtype=dtype, shape=shape, trusted=trusted)
    if rows.form != form:
        raise RuntimeError(
            f"{path} has changed since it was mapped: its rows (number, type, shape) were {form} and are now {rows.form}"
        )
    return rows


def mapped(
    path: str | os.PathLike[str], *, dtype: Any = None, shape: tuple[int, ...] | None = None, trusted: bool = False
) -> Mapped:
    """The rows of a .npy, .bin, .safetensors or .arrow file, or of a file that unjam wrote.

    dtype: the type of the numbers in a .bin file. shape: the shape of its whole array; -1 stands
        for the number of rows.
    trusted: for files that `SharedList(path=...)` wrote with pickled objects; see
        `SharedList.open`.

    Rows are copies: tensors, or Python values for strings and dates. A row of a .safetensors or
    .arrow file is a dict. The extension of the file name decides the format. Nothing in a .npy,
    .bin, .safetensors or .arrow file can run code.
    """
    where = os.path.abspath(os.fspath(path))
    kind = os.path.splitext(where)[1].lower()
    if not os.path.isfile(where):
        raise FileNotFoundError(f"mapped({os.fspath(path)!r}): there is no such file")
    try:
        return Mapped(where, _rows_of(where, kind, dtype, shape, trusted=trusted), (where, dtype, shape, trusted))
    except MemoryError:
        raise
    except Exception as error:  # numpy and pyarrow may raise anything for damaged files
        if (where in str(error) and isinstance(error, (ValueError, OSError))) or isinstance(error, ImportError):
            raise
        raise ValueError(f"{where} cannot be mapped: {error}") from error


def _rows_of(where: str, kind: str, dtype: Any, shape: tuple[int, ...] | None, *, trusted: bool) -> Any:
    if kind == ".npy":
        return _npy(where)
    if kind == ".safetensors":
        return _safetensors(where)
    if kind in _ARROW:
        return _Table(where)
    if kind in _RAW and dtype is not None:
        return _raw(where, dtype, shape)
    if _is_ours(where):
        return _ours(where, trusted=trusted)
    if kind in _RAW:
        raise ValueError(
            f"{where} holds raw bytes: give their type, mapped(path, dtype='float32', shape=(-1, 3, 32, 32))"
        )
    hint = ""
    if kind in (".npz", ".gz", ".zip", ".parquet"):
        hint = f"; a {kind} file is compressed or packed and cannot be read in place: convert it once to .npy or .arrow"
    elif kind in (".pt", ".pth", ".pkl"):
        hint = "; torch.load(path, mmap=True) maps the tensors of a .pt file, and SharedArray(tensor, path=...) writes a file that can be mapped"
    raise ValueError(
        f"{where} cannot be mapped: only .npy, .bin, .safetensors and .arrow files can, and files that SharedList(path=...) and "
        f"SharedArray(path=...) wrote{hint}"
    )


class MappedDataset(Dataset[Any]):
    """A dataset over mapped files: `MappedDataset("images.npy", "labels.npy")`.

    files: paths, results of `mapped`, or any sequence of rows. A sample is a tuple with one row of
        each file; with one file, it is the row itself.
    named: the same, by name; a sample is then a dict. transform: called with each sample.
    """

    def __init__(self, *files: Any, transform: Callable[[Any], Any] | None = None, **named: Any) -> None:
        if bool(files) == bool(named):
            raise TypeError(
                "MappedDataset takes files, or files with names: MappedDataset('x.npy') or MappedDataset(x='x.npy')"
            )
        self.columns = [_column(one) for one in files] if files else {key: _column(one) for key, one in named.items()}
        self.transform = transform
        each = self.columns.values() if isinstance(self.columns, dict) else self.columns
        lengths = [(getattr(one, "path", type(one).__name__), len(one)) for one in each]
        if len({count for _, count in lengths}) > 1:
            raise ValueError("the files have different numbers of rows: " + ", ".join(f"{k}: {v}" for k, v in lengths))
        self._count = lengths[0][1]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        sample: Any
        if isinstance(self.columns, dict):
            sample = {name: _row(column, index) for name, column in self.columns.items()}
        elif len(self.columns) == 1:
            sample = _row(self.columns[0], index)
        else:
            sample = tuple(_row(column, index) for column in self.columns)
        return sample if self.transform is None else self.transform(sample)


def _column(one: Any) -> Any:
    return mapped(one) if isinstance(one, (str, os.PathLike)) else one


def _row(column: Any, index: int) -> Any:
    return as_sample(column[index])


def as_sample(row: Any) -> Any:
    """A copy of a row for training: writable, and independent of the file."""
    if isinstance(row, torch.Tensor):
        return row.clone()
    if type(row).__module__.partition(".")[0] != "numpy":
        return row
    if row.dtype.kind not in "biufc" or row.dtype.itemsize > 16:  # torch has no tensors of strings, dates or records
        return row.item() if row.ndim == 0 else row.tolist()
    native = np.array(row, row.dtype.newbyteorder("="), copy=True)
    return torch.from_numpy(native)


# -- the files -----------------------------------------------------------------------------------------------------------


def _npy(path: str) -> Any:
    with open(path, "rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError(f"{path} is not a .npy file")
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim == 0:
        raise ValueError(f"{path} holds a single number, not rows")
    return array


def _raw(path: str, dtype: Any, shape: tuple[int, ...] | None) -> Any:
    kind = np.dtype(str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype)
    size = os.path.getsize(path)
    if size % kind.itemsize:
        raise ValueError(f"{path} has {size} bytes, which is not a multiple of {kind.itemsize}, the size of {kind}")
    array: Any = np.memmap(path, kind, "r") if size else np.empty(0, kind)
    if shape == ():
        raise ValueError(f"{path}: shape=() is a single number, not rows")
    try:
        return array if shape is None else array.reshape(shape)
    except ValueError as error:
        raise ValueError(
            f"{path} holds {array.size} numbers of type {kind}, which do not fit the shape {shape}"
        ) from error


def _safetensors(path: str) -> Any:
    """The rows of a .safetensors file: a header in JSON, then the bytes of the tensors."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(os.path.getsize(path), MOST_HEADER):
            raise ValueError(f"{path} is not a safetensors file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    tensors = {}
    for name, facts in header.items():
        if facts["dtype"] not in _SAFE:
            raise ValueError(f"{path}: {name} is of type {facts['dtype']}, which cannot be mapped")
        begin, _ = facts["data_offsets"]
        shape = tuple(facts["shape"])
        if not all(type(side) is int and side >= 0 for side in (begin, *shape)):
            raise ValueError(f"{path}: {name} has the shape {shape} at {begin}")
        empty = 0 in shape
        array = np.empty(shape, _SAFE[facts["dtype"]]) if empty else np.memmap(
            path, f"<{_SAFE[facts['dtype']]}".replace("<?", "?"), "r", 8 + length + begin, shape
        )  # fmt: skip
        tensors[name] = (array, _AS_TORCH.get(facts["dtype"]))
    return _Tensors(path, tensors)


class _Tensors:
    """The rows of a file with several tensors."""

    def __init__(self, path: str, tensors: dict[str, tuple[Any, torch.dtype | None]]) -> None:
        lengths = {name: array.shape[0] if array.ndim else "a single number" for name, (array, _) in tensors.items()}
        if len(set(lengths.values())) != 1 or "a single number" in lengths.values():
            raise ValueError(
                f"{path}: the tensors of a dataset must have the same number of rows, but they have {lengths or 'none'}"
            )
        self._tensors = tensors
        self._count = int(next(iter(lengths.values())))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        sample = {}
        for name, (array, kind) in self._tensors.items():
            row = array[index]
            if kind is None:
                sample[name] = as_sample(row)
            else:
                sample[name] = torch.from_numpy(row.reshape(-1).copy()).view(kind).reshape(row.shape)
        return sample


class _Table:
    """The rows of an Arrow file."""

    def __init__(self, path: str) -> None:
        try:
            import pyarrow as pa  # type: ignore[import-untyped] # noqa: PLC0415 - only for these files
        except ImportError as error:
            raise ImportError(f"{path} needs pyarrow: pip install 'unjam[arrow]'") from error
        if tuple(int(part) for part in pa.__version__.split(".")[:3] if part.isdecimal()) < (14, 0, 1):
            raise ValueError(
                f"{path} was not opened: pyarrow {pa.__version__} can run code from a file; use 14.0.1 or later"
            )
        source = pa.memory_map(path)
        try:
            file = pa.ipc.open_file(source)
            batches = [file.get_batch(place) for place in range(file.num_record_batches)]
        except pa.ArrowInvalid:
            source.seek(0)
            try:
                batches = list(pa.ipc.open_stream(source))
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{path} is not an Arrow file: {error}") from error
        for batch in batches:
            batch.validate()
        self._batches = [batch for batch in batches if batch.num_rows]
        # the row numbers where batches end, for a binary search
        self._ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def __getitem__(self, index: int) -> Any:
        place = bisect.bisect_right(self._ends, index)
        batch = self._batches[place]
        row = index - (self._ends[place - 1] if place else 0)
        one = batch.slice(row, 1)
        one.validate(full=True)  # pyarrow itself does not check offsets, and would read outside the file
        return {name: column[0].as_py() for name, column in zip(one.schema.names, one.columns, strict=True)}


def _is_ours(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - len(MAGIC)))
        return file.read() == MAGIC


def _ours(path: str, *, trusted: bool) -> Any:
    what = open_file(path)[1]["what"]
    if what == "dict":
        raise ValueError(f"{path} holds a dict, which has no rows: use SharedDict.open(path)")
    return SharedList.open(path, trusted=trusted) if what == "list" else SharedArray.open(path)
