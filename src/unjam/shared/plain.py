"""Which values are plain: built-in types only (no subclasses), at every level."""

from __future__ import annotations

import pickle
from typing import Any


class _Discard:
    @staticmethod
    def write(data: bytes) -> int:
        return len(data)


class NotPlain(Exception):
    """A value holds an object of another type, whose name is the text."""


class PlainPickler(pickle.Pickler):
    """Pickles built-in types only."""

    def reducer_override(self, obj: Any) -> Any:
        """Refuse everything else."""
        # protocol 4 writes a bytearray as a call of its class
        raise NotPlain(type(obj).__qualname__ if obj is not bytearray else "bytearray")


def is_plain(value: Any) -> str | None:
    """None if a value holds built-in types only; otherwise the name of a type that is not one."""
    pickler = PlainPickler(_Discard(), 4)
    pickler.fast = True
    try:
        pickler.dump(value)
    except NotPlain as error:
        return "class" if str(error) == "type" else str(error)
    except (ValueError, RecursionError):
        return "value that contains itself"
    return None
