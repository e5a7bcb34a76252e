"""Whether values are the very same, and whether anybody else holds a part of them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any

# what cannot be changed, and holds nothing
ATOMS = frozenset({str, bytes, int, float, bool, complex, type(None)})


def exactly(one: Any, other: Any) -> bool:
    """Equal, of the same types all the way down, and in the same order."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return list(one) == list(other) and all(map(exactly, one.values(), other.values()))
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(exactly, one, other))
    if kind is float or kind is complex:
        return repr(one) == repr(other)  # one that is no number equals itself here, and zero is not minus zero
    return bool(one == other)


TIED = "a list or dict in it is held somewhere else too, where a change would have to be seen (share_dataset=True, if there is none)"


class Ties:
    """Why plain values mean more than their content: a list or dict in them has a second holder, or a set has an order.

    forgiven: as many second holders do not count; a variable of a loop that is over holds the last item.
    """

    def __init__(self, forgiven: int = 0) -> None:
        self._forgiven = forgiven
        self.reason = ""

    def look(self, chunk: list[Any]) -> None:
        """Look at some values, which only their container and this list hold."""
        level, usual = chunk, _ALONE_IN_TWO_LISTS
        while not self.reason and not ATOMS.issuperset(map(type, level)):
            level = [value for value in level if type(value) not in ATOMS]
            dicts = [value for value in level if type(value) is dict]
            lists = [value for value in level if type(value) is list]
            tuples = [value for value in level if type(value) is tuple]
            if len(dicts) + len(lists) + len(tuples) != len(level):
                odd = set(map(type, level)) & {set, frozenset}
                if odd:
                    self.reason = f"it holds a {odd.pop().__name__}, whose order would be another"
                    return
            for some in (dicts, lists):
                self._forgiven -= sum(map(usual.__lt__, map(sys.getrefcount, some)))
            if self._forgiven < 0:
                self.reason = TIED
            # one level deeper, all of them together; nobody but their container holds these
            deeper = itertools.chain(map(dict.values, dicts), lists, tuples)
            level, usual = list(itertools.chain.from_iterable(deeper)), _ALONE_IN_TWO_LISTS - 1


def _references_of_one() -> int:
    """How many references a value has that only its container and two lists of some hold, as `Ties` counts them."""
    container: list[list[int]] = [[], []]
    chunk = list(container)
    level = list(chunk)
    some = [value for value in level if type(value) is list]
    return max(map(sys.getrefcount, some))


def depth_of(values: Iterable[Any]) -> int:
    """How deeply plain values are nested: 0 for numbers and strings, 1 for lists of these."""
    depth, level = 0, list(values)
    while not ATOMS.issuperset(map(type, level)):
        depth += 1
        inner = [value for value in level if type(value) not in ATOMS]
        level = [one for value in inner for one in (value.values() if type(value) is dict else value)]
    return depth


def is_held(value: Any, depth: int) -> bool:
    """Whether a value of this depth has a second holder, or a part of it; its container, this name and the question hold it."""
    if sys.getrefcount(value) > _HELD_BY_A_CALL and _can_change(value):
        return True
    if depth > 1 and type(value) not in ATOMS:
        return held_inside(value.values() if type(value) is dict else value)
    return False


def _can_change(value: Any) -> bool:
    """Not an atom, nor a tuple of atoms."""
    kind = type(value)
    return kind not in ATOMS and (kind is not tuple or not ATOMS.issuperset(map(type, value)))


def held_inside(values: Iterable[Any]) -> bool:
    """Whether a list or dict among them, or in one of them, has a second holder; of one item."""
    for value in values:
        kind = type(value)
        if kind in ATOMS:
            continue
        if sys.getrefcount(value) > _ALONE and _can_change(value):
            return True
        inner = value.values() if kind is dict else value
        if not ATOMS.issuperset(map(type, inner)) and held_inside(inner):
            return True
    return False


_ALONE_IN_TWO_LISTS = _references_of_one()


def _references_in_a_call(value: Any) -> int:
    return sys.getrefcount(value)


def _references_of_an_entry() -> int:
    entry: dict[str, list[int]] = {"x": []}
    return _references_in_a_call(entry["x"])


_HELD_BY_A_CALL = _references_of_an_entry()


def _references_in_a_loop() -> int:
    container: list[list[int]] = [[]]
    for value in container:
        return sys.getrefcount(value)
    return 0


def _references_of_a_popped() -> int:
    entry: dict[int, list[int]] = {0: []}
    item = entry.pop(0)
    return sys.getrefcount(item)


# references that are none of the user's; how many there are is for the interpreter to say
_ALONE = _references_in_a_loop()
POPPED = _references_of_a_popped()
