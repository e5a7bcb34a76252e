"""Reads files from unknown sources without running their code or crashing the interpreter.

`marshal.loads` is only for trusted data: crafted bytes can crash the interpreter. So can pickle without any
classes, by deep nesting or huge memo numbers. `loads` here reads the part of the marshal format that plain
values need, and checks every length. It takes five to eight times as long.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import Any

DEEPEST = 200
# by the byte that a value begins with
_CONSTANTS: dict[int, Any] = {ord("N"): None, ord("T"): True, ord("F"): False, ord("."): ...}
_PACKED = {ord("i"): struct.Struct("<i"), ord("g"): struct.Struct("<d"), ord("y"): struct.Struct("<dd")}
_CONTAINERS: dict[int, Any] = {ord("("): tuple, ord("["): list, ord("<"): set, ord(">"): frozenset}
_BYTES, _TEXTS, _LONG, _DICT, _DICT_END = ord("s"), b"ut", ord("l"), ord("{"), ord("0")


def pickled_items_error(path: str | None) -> ValueError:
    """The error for an untrusted file with pickled items."""
    return ValueError(
        f"{path} contains pickled objects, and reading them runs code from the file. If you trust everyone who could write to it, "
        "open it with trusted=True"
    )


@contextlib.contextmanager
def damage_as_value_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error from a damaged head into a ValueError that names the file."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is damaged: {type(error).__name__}: {error}") from error


def loads(data: bytes) -> Any:
    """Decode a plain value that `marshal` wrote; ValueError for anything else."""
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (IndexError, TypeError, struct.error) as error:
        raise ValueError(f"an item is damaged: {error}") from error
    if reader.at != len(data):
        raise ValueError("an item has extra bytes after its value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) != count:
            raise ValueError("an item is truncated")
        self.at += count
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "little", signed=True)

    def value(self, depth: int) -> Any:
        kind = self.data[self.at]
        self.at += 1
        if kind in _PACKED:
            numbers = _PACKED[kind].unpack_from(self.data, self.at)
            self.at += _PACKED[kind].size
            return numbers[0] if len(numbers) == 1 else complex(*numbers)
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _TEXTS:
            return self.take(self.number()).decode("utf-8", "surrogatepass")
        if kind == _BYTES:
            return self.take(self.number())
        if kind == _LONG:
            return self.long()
        if depth > DEEPEST:
            raise ValueError(f"an item is nested more than {DEEPEST} levels deep, which only trusted=True reads")
        if kind == _DICT:
            keys, values = [], []
            while self.data[self.at] != _DICT_END:
                keys.append(self.value(depth + 1))
                values.append(self.value(depth + 1))
            self.at += 1
            _check_keys(keys)
            return dict(zip(keys, values, strict=True))
        made = _CONTAINERS.get(kind)
        if made is None:
            raise ValueError(f"an item begins with an unsupported type code, {bytes([kind])!r}")
        parts = [self.value(depth + 1) for _ in range(self.number())]
        if made in (set, frozenset):
            _check_keys(parts)
        return made(parts)

    def long(self) -> int:
        """An integer of any size: digits of 15 bits, the lowest first."""
        count = self.number()
        digits = struct.unpack(f"<{abs(count)}H", self.take(2 * abs(count)))
        if any(digit >> 15 for digit in digits):
            raise ValueError("a number has an invalid digit")
        # by text, because a loop would take quadratic time
        number = int("".join(f"{digit:015b}" for digit in reversed(digits)) or "0", 2)
        return -number if count < 0 else number


def _check_keys(keys: list[Any]) -> None:
    """Refuse many large numbers: crafted ones share one hash, and building a set of them takes forever."""
    if len(keys) > 1000 and any(isinstance(key, (int, float)) and not abs(key) < 1 << 60 for key in keys):
        raise ValueError("too many large numbers as keys; only trusted=True reads them")
