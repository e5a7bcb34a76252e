"""Values for objects, found by the identity of the object."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ByIdentity(Generic[T]):
    """Keeps a value for an object while the object lives, without its `__eq__` or `__hash__`."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Any], T]] = {}

    def put(self, thing: Any, value: T) -> None:
        """Keep a value for an object."""
        number, kept = id(thing), self._kept
        kept[number] = (weakref.ref(thing, lambda _: kept.pop(number, None)), value)

    def get(self, thing: Any) -> T | None:
        """The value for an object, or None."""
        known = self._kept.get(id(thing))
        return known[1] if known is not None and known[0]() is thing else None
