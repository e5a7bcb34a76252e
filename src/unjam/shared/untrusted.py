"""Reads files from unknown sources without running their code or crashing the interpreter.

`marshal.loads` is only for trusted data: crafted bytes can crash the interpreter. So can pickle without any
classes, by deep nesting or huge memo numbers. `loads` here reads the part of the marshal format that plain
values need, and checks every length. It is ten times slower.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from unjam.shared.buffer import Buffer

DEEPEST = 200
_KINDS = {"q": 8, "d": 8, "?": 1, "b": 1}
_CONSTANTS = {ord("N"): None, ord("T"): True, ord("F"): False, ord("."): ...}


class _Damaged(ValueError):
    pass


def pickled_items_error(path: str | None) -> ValueError:
    """The error for an untrusted file with pickled items."""
    return ValueError(
        f"{path} holds pickled objects, and reading them runs code from the file. If you trust everyone who could write to it, "
        "open it with trusted=True"
    )


@contextlib.contextmanager
def broken_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error from a damaged file into a ValueError that names the file."""
    try:
        yield
    except (
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
        _Damaged,
        struct.error,
    ) as error:
        raise ValueError(f"{os.fspath(path)} is damaged: {type(error).__name__}: {error}") from error


def check_column(buffer: Buffer, head: dict[str, Any]) -> None:
    """Raise an error unless everything that a column's head names is inside the buffer."""
    layout, count = head["layout"], _number(head["count"])
    if layout == "objects":
        raise pickled_items_error(buffer.path)
    if layout in ("words", "rows"):
        width = _number(head["width"]) if layout == "rows" else 1
        if not width:
            raise _Damaged("rows without numbers")
        _inside(buffer, head["at"], count * width, _KINDS[head["kind"]])
    elif layout in ("texts", "blobs", "records", "values"):
        _inside(buffer, head["ends"], count + 1, 8)
    else:
        raise _Damaged(f"unknown layout {str(layout)[:40]!r}")
    if layout == "records" and not all(isinstance(key, str) for key in head["keys"]):
        raise _Damaged("the keys of its records are not strings")


def check_table(buffer: Buffer, head: dict[str, Any]) -> None:
    """Raise an error unless the hash table of a mapping is valid."""
    slots = _number(head["slots"])
    if slots & (slots - 1) or not slots or _number(head["count"]) >= slots:
        raise _Damaged(f"a hash table of {slots} slots for {head['count']} keys")
    _inside(buffer, head["table"], slots, 8)
    if int(np.frombuffer(buffer.bytes, np.int64, slots, head["table"]).max()) >= head["count"]:
        raise _Damaged("the hash table refers to a missing key")
    if not head["keys"]["count"] == head["values"]["count"] == head["count"]:
        raise _Damaged("the numbers of keys and values differ")


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise _Damaged(f"{str(value)[:40]} is not a count")
    return value


def _inside(buffer: Buffer, at: Any, count: int, width: int) -> None:
    if _number(at) + count * width > buffer.size:
        raise _Damaged(f"{count} items at {at} are beyond the end of the file")


def loads(data: bytes) -> Any:
    """Decode a plain value that `marshal` wrote; ValueError for anything else."""
    try:
        value, end = _value(data, 0, 0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise _Damaged(f"an item is damaged: {error}") from error
    if end != len(data):
        raise _Damaged("an item has more bytes than its value")
    return value


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = data[at]
    at += 1
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    if kind == 0x69:  # i
        return int.from_bytes(_take(data, at, 4), "little", signed=True), at + 4
    if kind == 0x67:  # g
        return struct.unpack_from("<d", data, at)[0], at + 8
    if kind == 0x79:  # y
        return complex(*struct.unpack_from("<dd", data, at)), at + 16
    if kind == 0x6C:  # l
        return _long(data, at)
    length = int.from_bytes(_take(data, at, 4), "little", signed=True) if kind != 0x7B else 0
    at += 4 if kind != 0x7B else 0
    if length < 0 or length > len(data):
        raise _Damaged(f"an item of {length} bytes")
    if kind == 0x73:  # s
        return _take(data, at, length), at + length
    if kind in (0x75, 0x74):  # u, t
        return _take(data, at, length).decode("utf-8", "surrogatepass"), at + length
    if depth > DEEPEST:
        raise _Damaged(f"an item is nested more than {DEEPEST} levels deep, which only trusted=True reads")
    if kind == 0x7B:
        return _dict(data, at, depth)
    if kind not in (0x28, 0x5B, 0x3C, 0x3E):  # ( [ < >
        raise _Damaged(f"an item begins with {bytes([kind])!r}")
    parts = []
    for _ in range(length):
        part, at = _value(data, at, depth + 1)
        parts.append(part)
    if kind in (0x3C, 0x3E):
        _check_keys(parts)
    made: Any = {0x28: tuple, 0x5B: list, 0x3C: set, 0x3E: frozenset}[kind]
    return parts if made is list else made(parts), at


def _take(data: bytes, at: int, length: int) -> bytes:
    taken = data[at : at + length]
    if len(taken) != length:
        raise _Damaged("an item ends too early")
    return taken


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Decode an integer of any size: digits of 15 bits, the lowest first."""
    count = int.from_bytes(_take(data, at, 4), "little", signed=True)
    at += 4
    digits = struct.unpack(f"<{abs(count)}H", _take(data, at, 2 * abs(count)))
    if any(digit >> 15 for digit in digits):
        raise _Damaged("a number has an invalid digit")
    # by text, because a loop would take quadratic time
    number = int("".join(f"{digit:015b}" for digit in reversed(digits)) or "0", 2)
    return (-number if count < 0 else number), at + 2 * len(digits)


def _dict(data: bytes, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    keys, values = [], []
    while data[at] != 0x30:  # 0
        key, at = _value(data, at, depth + 1)
        value, at = _value(data, at, depth + 1)
        keys.append(key)
        values.append(value)
    _check_keys(keys)
    return dict(zip(keys, values, strict=True)), at + 1


def _check_keys(keys: list[Any]) -> None:
    """Refuse many large numbers: crafted ones share one hash, and building a set of them takes forever."""
    if len(keys) > 1000 and any(isinstance(key, (int, float)) and not abs(key) < 1 << 60 for key in keys):
        raise _Damaged("many large numbers as keys")
