"""Whether values are the very same, and whether anybody else holds a part of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

# what cannot be changed, and holds nothing
ATOMS = frozenset({str, bytes, int, float, bool, complex, type(None)})
# references to a value that is looked at in a loop: its container's, the loop's, the question's
_ALONE = 3


def exactly(one: Any, other: Any) -> bool:
    """Equal, of the same types all the way down, and in the same order."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return list(one) == list(other) and all(map(exactly, one.values(), other.values()))
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(exactly, one, other))
    return bool(one == other)


def tied(values: Iterable[Any], forgiven: int = 0) -> str:
    """Why plain values mean more than their content: a list or dict in them has a second holder, or a set has an order; else nothing.

    forgiven: as many second holders do not count; a variable of a loop that is over holds the last item.
    """
    found = _Found(forgiven)
    _look(values, found)
    return found.reason


class _Found:
    __slots__ = ("left", "reason")

    def __init__(self, left: int) -> None:
        self.left = left
        self.reason = ""


def _look(values: Iterable[Any], found: _Found) -> None:
    for value in values:
        kind = type(value)
        if kind in ATOMS:
            continue
        if kind is dict or kind is list:
            if sys.getrefcount(value) > _ALONE:
                found.left -= 1
                if found.left < 0:
                    found.reason = f"a {kind.__name__} in it is held somewhere else too, where a change would have to be seen (share_dataset=True, if there is none)"
                    return
        elif kind is not tuple:
            found.reason = f"it holds a {kind.__name__}, whose order would be another"
            return
        inner = value.values() if kind is dict else value
        if not ATOMS.issuperset(map(type, inner)):
            _look(inner, found)
            if found.reason:
                return
