"""Which values are plain: built-in types only (no subclasses), at every level."""

from __future__ import annotations

import pickle
from typing import Any


class NotPlain(TypeError):
    """An item is not a plain value. `place`: its index. `kind`: the type that is not plain."""

    def __init__(self, place: int, kind: str) -> None:
        super().__init__(f"item {place} holds a {kind}")
        self.place = place
        self.kind = kind


class _BytearrayFinder:
    """A file that discards everything and only looks for the name "bytearray", which a string may contain, too.

    pickle supports bytearray, but marshal would turn it into bytes.
    """

    found = False

    def write(self, data: bytes) -> int:
        self.found = self.found or b"bytearray" in data
        return len(data)


class _NotPlainType(Exception):
    pass


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        raise _NotPlainType(type(obj).__qualname__ if not isinstance(obj, type) else "class")


def is_plain(value: Any) -> str | None:
    """None if a value holds built-in types only; otherwise the name of a type that is not one."""
    finder = _BytearrayFinder()
    pickler = _PlainPickler(finder, 4)
    pickler.fast = True
    try:
        pickler.dump(value)
    except _NotPlainType as error:
        return str(error)
    except (ValueError, RecursionError):
        return "value that contains itself"
    return "bytearray" if finder.found and _has_bytearray(value) else None


def _has_bytearray(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_bytearray, value)) or any(map(_has_bytearray, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_bytearray, value))
    return isinstance(value, bytearray)


def check_plain(chunk: list[Any]) -> None:
    """Raise `NotPlain` for the first item that is not plain."""
    if is_plain(chunk) is not None:
        for place, item in enumerate(chunk):
            kind = is_plain(item)
            if kind is not None:
                raise NotPlain(place, kind)
