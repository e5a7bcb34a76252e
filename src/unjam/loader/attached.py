"""What unjam knows of loaders that are torch's own: kept beside them, so that whoever prints or pickles one finds nothing new in it."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """Something for each of some objects, until they are gone. By identity: a user's class may compare and hash as it likes."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Any], T]] = {}

    def put(self, thing: Any, value: T) -> None:
        """Keep it."""
        number, kept = id(thing), self._kept
        kept[number] = (weakref.ref(thing, lambda _: kept.pop(number, None)), value)

    def get(self, thing: Any) -> T | None:
        """What was kept, or None."""
        known = self._kept.get(id(thing))
        return known[1] if known is not None and known[0]() is thing else None


_own: Beside[Any] = Beside()
keep, find = _own.put, _own.get
