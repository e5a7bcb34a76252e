"""Which values are plain: Python's own, exactly, all the way down."""

from __future__ import annotations

import pickle
from typing import Any


class NotPlain(TypeError):
    """An item that is no plain value; `place` is its index and `kind` the type that is not plain."""

    def __init__(self, place: int, kind: str) -> None:
        super().__init__(f"item {place} holds a {kind}")
        self.place = place
        self.kind = kind


class _Scales:
    """A file that only looks for the one type that pickle knows and marshal would change: its name, which may be a text's too."""

    suspects = False

    def write(self, data: bytes) -> int:
        self.suspects = self.suspects or b"bytearray" in data
        return len(data)


class _Odd(Exception):
    pass


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        raise _Odd(type(obj).__qualname__ if not isinstance(obj, type) else "class")


def is_plain(value: Any) -> str | None:
    """None if it consists of Python's own values only, exactly; otherwise the type that it has and that is not one."""
    scales = _Scales()
    pickler = _PlainPickler(scales, 4)
    pickler.fast = True
    try:
        pickler.dump(value)
    except _Odd as odd:
        return str(odd)
    except (ValueError, RecursionError):
        return "value that holds itself"
    return "bytearray" if scales.suspects and _has_bytearray(value) else None


def _has_bytearray(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_bytearray, value)) or any(map(_has_bytearray, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_bytearray, value))
    return isinstance(value, bytearray)


def check_plain(chunk: list[Any]) -> None:
    """Raise `NotPlain` for the first item that is not."""
    if is_plain(chunk) is not None:
        for place, item in enumerate(chunk):
            kind = is_plain(item)
            if kind is not None:
                raise NotPlain(place, kind)
