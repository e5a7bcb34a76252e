"""Which values are plain: built-in types only (no subclasses), at every level."""

from __future__ import annotations

import pickle
from typing import Any


class _Discard:
    @staticmethod
    def write(data: bytes) -> int:
        return len(data)


class _NotPlainType(Exception):
    pass


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # protocol 4 writes a bytearray as a call of its class
        raise _NotPlainType(type(obj).__qualname__ if obj is not bytearray else "bytearray")


def is_plain(value: Any) -> str | None:
    """None if a value holds built-in types only; otherwise the name of a type that is not one."""
    pickler = _PlainPickler(_Discard(), 4)
    pickler.fast = True
    try:
        pickler.dump(value)
    except _NotPlainType as error:
        return "class" if str(error) == "type" else str(error)
    except (ValueError, RecursionError):
        return "value that contains itself"
    return None
