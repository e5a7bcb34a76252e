"""Classes that came to a worker by value go back as the parent's own.

cloudpickle gives a class that it sends by value a number, and knows the class by it when it comes back; but it also sends
the whole class again, and lays that copy's attributes over the original: a counter that the parent keeps on the class
would be reset by every batch. So what came from the parent goes back as the number alone.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as inner

_from_parent: set[str] = set()


def remember() -> None:
    """Everything known by now came from the parent."""
    _from_parent.update(inner._DYNAMIC_CLASS_TRACKER_BY_ID)  # noqa: SLF001 - cloudpickle offers no other way to ask


def by_number(kind: type) -> Any:
    """How a class goes back, if it came from the parent."""
    number = inner._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind)  # noqa: SLF001 - as above
    return (known, (number,)) if number in _from_parent else NotImplemented


def known(number: str) -> type:
    """The parent's own class."""
    kind: type = inner._DYNAMIC_CLASS_TRACKER_BY_ID[number]  # noqa: SLF001 - as above
    return kind


class _Returning(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle ships no types
    def reducer_override(self, obj: Any) -> Any:
        reduced = by_number(obj) if isinstance(obj, type) else NotImplemented
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def dumps(obj: object) -> bytes:
    """Pickle something by value on its way back to the parent."""
    file = io.BytesIO()
    _Returning(file, pickle.HIGHEST_PROTOCOL).dump(obj)
    return file.getvalue()
