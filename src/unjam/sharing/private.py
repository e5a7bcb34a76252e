"""What stands in a worker for a large list, dict or tuple of the dataset's: the shared one, until somebody writes.

NOTE [ As after a fork ]

A worker that was forked has a copy of everything: it may write to it, and nobody else sees it. That must stay true, so these behave as the
container itself does. Reading goes to the shared buffer. A write to the container makes a copy for this process and goes there. Items
that can be changed (dicts, lists) are made anew when they are read; the last ones are remembered, so that the same item is the same
object while anybody holds it, and one that was changed meanwhile is kept as this process's own.

They say that they are lists (`isinstance` believes it), but code in C that asks the object itself finds otherwise. So a dry run with the
real thing beside it comes first; see `unjam.worker.tasting`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, ItemsView, Iterator, MutableMapping, MutableSequence, Sequence, ValuesView
from typing import Any

from unjam.sharing.calling import calling_line
from unjam.sharing.dicts import SharedDict
from unjam.sharing.lists import SharedList
from unjam.sharing.remembered import Items, Journal, journals, news


class Standing:
    """What a standing list, tuple and dict have in common."""

    __slots__ = ("_copy", "_items", "_original", "journal", "path", "shared")
    _stands_for: type
    _items: Items

    def __init__(self, path: str, shared: Any, original: Any = None) -> None:
        self.path = path
        self.shared = shared
        self._copy: Any = None
        # in a forked worker the container itself, which others may hold too: who writes, writes to it
        self._original = original
        self.journal = journals.setdefault(path, Journal())

    def _whole(self) -> Any:
        """The container as a whole, for what needs all of it."""
        if self._copy is not None:
            return self._copy
        self.journal.whole = True
        return self._materialise()

    def _materialise(self) -> Any:
        raise NotImplementedError

    def look(self) -> None:
        """Whether an item was changed, as far as items are remembered."""
        self._items.look()

    def real(self) -> Any:
        """For a dry run: a real container; of one that was not read as a whole, with those items only that were read."""
        if self._copy is not None or self.journal.whole or self.journal.read is None:
            return self._stands_for(self._whole())
        return self._in_part(self.journal.read)

    def become(self, real: Any) -> None:
        """From now on it is what a real container is."""
        self._copy = real
        self._take_time()

    def record(self) -> None:
        """From now on the journal says which items were read."""
        self.journal.read = set()
        self._take_time()

    def _take_time(self) -> None:
        """Nothing may be read past the copy, or past the journal."""

    def _in_part(self, read: set[Any]) -> Any:
        raise NotImplementedError

    def _mine(self) -> Any:
        """The copy of this process, made at the first write."""
        if self._copy is None:
            if not self.journal.written:
                self.journal.written = f"{calling_line()} writes to it"
                news.append((self.path, self.journal.written))
            self.become(self._take_back() if self._original is not None else self._materialise())
        return self._copy

    def _take_back(self) -> Any:
        """The container itself, with the items that were changed meanwhile."""
        return self._original

    def __reduce_ex__(self, protocol: Any) -> Any:
        # wherever a worker sends it, it is what it stands for
        return self._stands_for, (self._whole(),)

    def __copy__(self) -> Any:
        return self._stands_for(self._whole())

    def __deepcopy__(self, memo: Any) -> Any:
        import copy  # noqa: PLC0415 - rarely needed

        return copy.deepcopy(self._whole(), memo)


class StandingSequence(Standing):
    """Stands for a list or a tuple."""

    __slots__ = ("_count", "_plain")
    shared: SharedList

    def __init__(self, path: str, shared: SharedList, original: Any = None) -> None:
        super().__init__(path, shared, original)
        self._items = Items(shared, self.journal)
        self._plain = not shared.mutable
        self._count = len(shared)

    def _materialise(self) -> Any:
        return self._stands_for(self._items)

    def _take_back(self) -> Any:
        for place, item in self._items.changed().items():
            if self._stands_for is list:
                self._original[place] = item
        return self._original

    def _in_part(self, read: set[Any]) -> Any:
        part: list[Any] = [None] * len(self.shared)
        for place in read:
            part[place] = self._items.get(place)
        return self._stands_for(part)

    def __getitem__(self, index: Any) -> Any:
        if self._copy is not None:
            return self._copy[index]
        read = self.journal.read
        if type(index) is int and read is None and 0 <= index < self._count:
            return self.shared[index] if self._plain else self._items.get(index)
        if isinstance(index, slice):
            return self._stands_for([self[place] for place in range(self._count)[index]])
        place = index.__index__() if hasattr(index, "__index__") else index
        if type(place) is not int:
            raise TypeError(
                f"{self._stands_for.__name__} indices must be integers or slices, not {type(index).__name__}"
            )
        if place < 0:
            place += self._count
        if not 0 <= place < self._count:
            raise IndexError(f"{self._stands_for.__name__} index out of range")
        if read is not None:
            read.add(place)
        return self.shared[place] if self._plain else self._items.get(place)

    def __len__(self) -> int:
        return len(self.shared) if self._copy is None else len(self._copy)

    def __iter__(self) -> Iterator[Any]:
        if self._copy is not None:
            return iter(self._copy)
        self.journal.whole = True
        return iter(self._items)

    def __reversed__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self) - 1, -1, -1))

    def __contains__(self, value: object) -> bool:
        return any(value is one or value == one for one in self)

    def index(self, value: Any, start: int = 0, stop: int = sys.maxsize) -> int:
        """As a list's."""
        if self._copy is not None:
            return int(self._copy.index(value, start, stop))
        for place in range(len(self))[start:stop]:
            one = self[place]
            if one is value or one == value:
                return place
        raise ValueError(f"{value!r} is not in {self._stands_for.__name__}")

    def __radd__(self, other: Any) -> Any:
        return other + self._whole() if type(other) is self._stands_for else NotImplemented

    def count(self, value: Any) -> int:
        """As a list's."""
        return sum(1 for one in self if one is value or one == value)


@MutableMapping.register
class StandingDict(Standing):
    """Stands for a dict."""

    __slots__ = ()
    _stands_for = dict
    shared: SharedDict
    __class__ = property(lambda _: dict)  # see the note
    __hash__ = None  # type: ignore[assignment] # as a dict's

    def __init__(self, path: str, shared: SharedDict, original: Any = None) -> None:
        super().__init__(path, shared, original)
        self._items = Items(shared._values, self.journal)  # noqa: SLF001 - made for this

    def _materialise(self) -> Any:
        return dict(zip(self.shared, self._items, strict=True))

    def _take_back(self) -> Any:
        changed = self._items.changed()
        if changed:
            keys = list(self.shared)
            self._original.update({keys[place]: item for place, item in changed.items()})
        return self._original

    fromkeys = dict.fromkeys

    def _in_part(self, read: set[Any]) -> Any:
        return dict.fromkeys(self.shared) | {key: self[key] for key in read if key in self.shared}

    def __getitem__(self, key: Any) -> Any:
        if self._copy is not None:
            return self._copy[key]
        place = self.shared.place(key)
        if self.journal.read is not None:
            self.journal.read.add(key)
        if place < 0:
            raise KeyError(key)
        return self._items.get(place)

    def get(self, key: Any, default: Any = None) -> Any:
        """As a dict's."""
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: object) -> bool:
        return key in (self.shared if self._copy is None else self._copy)

    def __len__(self) -> int:
        return len(self.shared if self._copy is None else self._copy)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.shared if self._copy is None else self._copy)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.shared if self._copy is None else self._copy)

    def keys(self) -> Any:
        """As a dict's."""
        return self.shared.keys() if self._copy is None else self._copy.keys()

    def values(self) -> Any:
        """As a dict's."""
        return _ValuesNow(self) if self._copy is None else self._copy.values()

    def items(self) -> Any:
        """As a dict's."""
        return _ItemsNow(self) if self._copy is None else self._copy.items()

    def each(self) -> Iterator[Any]:
        """The values, one after the other."""
        if self._copy is not None:
            return iter(self._copy.values())
        self.journal.whole = True
        return iter(self._items)


class _ValuesNow(ValuesView[Any]):
    _mapping: StandingDict

    def __iter__(self) -> Iterator[Any]:
        return self._mapping.each()

    def __reversed__(self) -> Iterator[Any]:
        return (self._mapping[key] for key in reversed(self._mapping))


class _ItemsNow(ItemsView[Any, Any]):
    _mapping: StandingDict

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self._mapping, self._mapping.each(), strict=True)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self._mapping[key]) for key in reversed(self._mapping))


# -- everything else that a list, a tuple and a dict can do -------------------------------------------------------------------

_READS = {
    list: ("__add__", "__mul__", "__rmul__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__repr__", "copy"),
    tuple: ("__add__", "__mul__", "__rmul__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__repr__", "__hash__"),
    dict: ("__eq__", "__ne__", "__or__", "__ror__", "__repr__", "copy"),
}  # fmt: skip
_WRITES = {
    list: (
        "__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "extend", "insert", "pop", "remove", "clear", "sort",
        "reverse",
    ),
    tuple: (),
    dict: ("__setitem__", "__delitem__", "__ior__", "pop", "popitem", "setdefault", "update", "clear"),
}  # fmt: skip


@MutableSequence.register
class StandingList(StandingSequence):
    """Stands for a list."""

    __slots__ = ()
    _stands_for = list
    __class__ = property(lambda _: list)  # see the note
    __hash__ = None  # type: ignore[assignment] # as a list's


@Sequence.register
class StandingTuple(StandingSequence):
    """Stands for a tuple."""

    __slots__ = ()
    _stands_for = tuple
    __class__ = property(lambda _: tuple)  # see the note


def _reading(kind: type, name: str) -> Callable[..., Any]:
    plain = getattr(kind, name)

    def read(self: Any, *others: Any) -> Any:
        return plain(self._whole(), *(_real(other) for other in others))

    read.__name__ = name
    return read


def _writing(kind: type, name: str) -> Callable[..., Any]:
    plain = getattr(kind, name)

    def write(self: Any, *values: Any, **named: Any) -> Any:
        answer = plain(self._mine(), *(_real(value) for value in values), **named)
        return self if name in ("__iadd__", "__imul__", "__ior__") else answer

    write.__name__ = name
    return write


def _real(value: Any) -> Any:
    """What stands for a list, as the list: Python's own methods ask for the real one."""
    return value._whole() if isinstance(type(value), type) and issubclass(type(value), Standing) else value  # noqa: SLF001


for _standing in (StandingList, StandingTuple, StandingDict):
    _kind = _standing._stands_for  # noqa: SLF001 - of this module
    for _name in _READS[_kind]:
        setattr(_standing, _name, _reading(_kind, _name))
    for _name in _WRITES[_kind]:
        setattr(_standing, _name, _writing(_kind, _name))
