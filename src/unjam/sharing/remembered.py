"""The items that a worker has read from a shared container, and what it did with them. See NOTE [ As after a fork ]."""

from __future__ import annotations

import marshal
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from unjam.sharing.columns import PLAINLY
from unjam.sharing.lists import SharedList

# items that are remembered after they were read
REMEMBERED = 64


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

    __slots__ = ("_own", "_recent", "_shared", "_sweep_at", "_turn", "journal")

    def __init__(self, shared: SharedList, journal: Journal) -> None:
        self._shared = shared
        self._own: dict[int, Any] = {}
        self._recent: dict[int, tuple[Any, bytes]] = {}
        self._turn: deque[int] = deque()
        self._sweep_at = REMEMBERED
        self.journal = journal

    def get(self, place: int) -> Any:
        """The item at a place."""
        known = self._recent.get(place)
        if known is not None:
            return known[0]
        if place in self._own:
            return self._own[place]
        item = self._shared[place]
        kind = type(item)
        if kind is not dict and kind is not list and kind is not tuple and kind is not set:
            return item
        self._recent[place] = (item, marshal.dumps(item, PLAINLY))
        self._turn.append(place)
        if len(self._turn) > REMEMBERED:
            self._let_go(self._turn.popleft())
        return item

    def _let_go(self, place: int) -> None:
        """Forget an item that nobody has changed and nobody holds."""
        item, before = self._recent[place]
        held = sys.getrefcount(item) > 3  # the entry, this name and the question itself
        try:
            changed = marshal.dumps(item, PLAINLY) != before and item != marshal.loads(before)  # noqa: S302 - written above
        except ValueError:  # something was put into it that is not plain
            changed = True
        if changed or held:
            self._own[place] = item
            if changed and not self.journal.changed:
                self.journal.changed = "an item of it is changed in place"
        del self._recent[place]
        if len(self._own) > self._sweep_at:
            self._sweep()
            self._sweep_at = max(REMEMBERED, 2 * len(self._own))

    def _sweep(self) -> None:
        """Items that were held when their turn came, and are not any more."""
        for place, item in list(self._own.items()):
            if sys.getrefcount(item) <= 4 and item == self._shared[place]:
                del self._own[place]

    def look(self) -> None:
        """Whether anything that is remembered was changed."""
        while self._turn:
            self._let_go(self._turn.popleft())

    def __iter__(self) -> Iterator[Any]:
        return map(self.get, range(len(self._shared))) if self._shared.mutable else iter(self._shared)
