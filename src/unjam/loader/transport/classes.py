"""Classes that a worker got by value go back to the parent as a number.

cloudpickle gives each class that it sends by value a number, and recognises the class by it when it
comes back. But it also sends the whole class again and writes the copy's attributes over the
original. Every batch would then reset a counter that the parent keeps on the class. So for a class
that came from the parent we send only the number.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as inner

_from_parent: set[str] = set()


def remember() -> None:
    """Record that all classes cloudpickle knows now came from the parent."""
    _from_parent.update(inner._DYNAMIC_CLASS_TRACKER_BY_ID)  # noqa: SLF001 - cloudpickle has no public access


def by_number(kind: type) -> Any:
    """Return the reduction of a class that came from the parent, else NotImplemented."""
    number = inner._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind)  # noqa: SLF001 - as above
    return (known, (number,)) if number in _from_parent else NotImplemented


def known(number: str) -> type:
    """Return the parent's own class."""
    kind: type = inner._DYNAMIC_CLASS_TRACKER_BY_ID[number]  # noqa: SLF001 - as above
    return kind


class ToParentPickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle ships no types
    """Pickles by value, except the classes that came from the parent."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how to rebuild an object."""
        reduced = by_number(obj) if isinstance(obj, type) else NotImplemented
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def dumps(obj: object) -> bytes:
    """Pickle an object by value, to send it back to the parent."""
    file = io.BytesIO()
    ToParentPickler(file, pickle.HIGHEST_PROTOCOL).dump(obj)
    return file.getvalue()
