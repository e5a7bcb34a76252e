"""The items that a worker has read from a shared container, and what it did with them. See NOTE [ As after a fork ]."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from unjam.sharing.exact import ATOMS, POPPED
from unjam.sharing.lists import SharedList

# items that are remembered after they were read
REMEMBERED = 32
# batches after which what somebody held is looked at again
SWEEP_EVERY = 64


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


# the items of every container of this process, for the end of a batch
_everyones: weakref.WeakSet[Items] = weakref.WeakSet()


def batch_over() -> list[tuple[str, str]]:
    """Forget items that are not held any more; the containers that were copied since the last question: path and line."""
    for items in list(_everyones):
        items.batch_over()
    return copied()


class Items:
    """Items by their place: shared ones, those that are remembered, and those that are this process's own."""

    __slots__ = ("__weakref__", "_batches", "_changed", "_held", "_lock", "_recent", "_shared", "_sweep_at", "journal")

    def __init__(self, shared: SharedList, journal: Journal) -> None:
        self._shared = shared
        # in the order in which they were read
        self._recent: dict[int, Any] = {}
        # those that somebody held when their turn to be forgotten came, and those that are not what was shared
        self._held: dict[int, Any] = {}
        self._changed: dict[int, Any] = {}
        self._sweep_at = REMEMBERED
        self._batches = 0
        # several threads of a worker may read
        self._lock = threading.RLock()
        self.journal = journal
        _everyones.add(self)

    def get(self, place: int) -> Any:
        """The item at a place."""
        with self._lock:
            return self._get(place)

    def _get(self, place: int) -> Any:
        recent = self._recent
        if place in recent:
            return recent[place]
        if place in self._changed:
            return self._changed[place]
        if place in self._held:
            return self._held[place]
        item = self._shared._get(place)  # noqa: SLF001 - it is an index
        if type(item) in ATOMS:
            return item
        recent[place] = item
        if len(recent) > REMEMBERED:
            self._let_go(next(iter(recent)))
        return item

    def _let_go(self, place: int) -> None:
        """Forget an item that nobody has changed and nobody holds, nor a part of it."""
        item = self._recent.pop(place)
        if not self._shared.same(place, item):
            self._keep(place, item)
        elif sys.getrefcount(item) > POPPED or self._shared.held(item):
            self._held[place] = item
            if len(self._held) > self._sweep_at:
                self._sweep()

    def _keep(self, place: int, item: Any) -> None:
        self._changed[place] = item
        if not self.journal.changed:
            self.journal.changed = "an item of it is changed in place"

    def batch_over(self) -> None:
        """Look at what is held, now and then."""
        self._batches += 1
        if len(self._held) > REMEMBERED and self._batches % SWEEP_EVERY == 0:
            self.sweep()

    def sweep(self) -> None:
        """Items that were held when their turn came, and are not any more."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        held, self._held = self._held, {}
        while held:
            place, item = held.popitem()
            if not self._shared.same(place, item):
                self._keep(place, item)
            elif sys.getrefcount(item) > POPPED or self._shared.held(item):
                self._held[place] = item
        self._sweep_at = max(REMEMBERED, 2 * len(self._held))

    def look(self) -> None:
        """Whether anything that is remembered was changed."""
        with self._lock:
            while self._recent:
                self._let_go(next(iter(self._recent)))
            self._sweep()

    def changed(self) -> dict[int, Any]:
        """What differs from the shared items, or may soon: by place."""
        return {**self._held, **self._recent, **self._changed}

    def __iter__(self) -> Iterator[Any]:
        return map(self.get, range(len(self._shared))) if self._shared.mutable else iter(self._shared)
