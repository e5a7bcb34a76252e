"""The items that a worker has read from a shared container, and what it did with them. See NOTE [ As after a fork ]."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from unjam.sharing.lists import SharedList

# items that are remembered after they were read
REMEMBERED = 64
_CHANGEABLE = (dict, list, tuple, set)


class Journal:
    """What this process did with a container: for the dry run, and for whoever wants to know what was copied."""

    __slots__ = ("changed", "read", "whole", "written")

    def __init__(self) -> None:
        # places that were read, while somebody wants to know
        self.read: set[Any] | None = None
        self.whole = False
        # the lines that wrote to the container, and to an item of it
        self.written = ""
        self.changed = ""


# the containers of this process, by the path at which they hang in the dataset
journals: dict[str, Journal] = {}
# those that were written to and of which nobody has been told
news: list[tuple[str, str]] = []


def copied() -> list[tuple[str, str]]:
    """The containers that this process has copied since the last question: path and line."""
    told = list(news)
    news.clear()
    return told


class Items:
    """Items by their place: shared ones, those that are remembered, and those that are this process's own."""

    __slots__ = ("_own", "_recent", "_shared", "_sweep_at", "journal")

    def __init__(self, shared: SharedList, journal: Journal) -> None:
        self._shared = shared
        self._own: dict[int, Any] = {}
        # in the order in which they were read
        self._recent: dict[int, Any] = {}
        self._sweep_at = REMEMBERED
        self.journal = journal

    def get(self, place: int) -> Any:
        """The item at a place."""
        recent = self._recent
        if place in recent:
            return recent[place]
        if place in self._own:
            return self._own[place]
        item = self._shared._get(place)  # noqa: SLF001 - it is an index
        if type(item) not in _CHANGEABLE:
            return item
        recent[place] = item
        if len(recent) > REMEMBERED:
            self._let_go(next(iter(recent)))
        return item

    def _let_go(self, place: int) -> None:
        """Forget an item that nobody has changed and nobody holds."""
        item = self._recent.pop(place)
        changed = not self._shared.same(place, item)
        # otherwise referred to by this name and by the question itself
        if changed or sys.getrefcount(item) > 2:
            self._own[place] = item
            if changed and not self.journal.changed:
                self.journal.changed = "an item of it is changed in place"
        if len(self._own) > self._sweep_at:
            self._sweep()
            self._sweep_at = max(REMEMBERED, 2 * len(self._own))

    def _sweep(self) -> None:
        """Items that were held when their turn came, and are not any more."""
        for place in list(self._own):
            item = self._own.pop(place)
            if sys.getrefcount(item) > 2 or not self._shared.same(place, item):
                self._own[place] = item

    def look(self) -> None:
        """Whether anything that is remembered was changed."""
        while self._recent:
            self._let_go(next(iter(self._recent)))

    def __iter__(self) -> Iterator[Any]:
        return map(self.get, range(len(self._shared))) if self._shared.mutable else iter(self._shared)
