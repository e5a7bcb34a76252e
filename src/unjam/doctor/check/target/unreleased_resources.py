"""Finds what loading a sample acquired and did not release: locks, semaphores, open transactions, lock files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from unjam.doctor.check.inventory import walk
from unjam.doctor.check.target import file_events
from unjam.doctor.facts.trial import Place

MOST = 24


class HeldResources:
    """The locks and databases that a dataset can reach, and how often this process holds each."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        self._roots = (dataset, collate)
        self._probes: dict[str, tuple[str, Callable[[], int]]] = {}
        self.find()

    def find(self) -> None:
        """Search again: the first sample may have created new ones."""
        dataset, collate = self._roots
        for found in walk({"dataset": dataset, "collate_fn": collate}):
            probe = _probe(found.value)
            if probe is not None and len(self._probes) < MOST:
                self._probes.setdefault(found.path, probe)

    def read(self) -> dict[str, int]:
        """How often this process holds each of them."""
        file_events.exclusive.clear()
        return {path: count() for path, (_, count) in self._probes.items()}

    def not_released(self, before: dict[str, int]) -> list[tuple[str, str, Place | None]]:
        """The resources that are held now but were not before: path, kind, and the line that created a file."""
        alone = threading.active_count() == 1  # otherwise another thread may hold a lock of this process
        probes = {path: one for path, one in self._probes.items() if alone or one[0] != "lock"}
        found: list[tuple[str, str, Place | None]] = [
            (path, kind, None) for path, (kind, count) in probes.items() if count() > before.get(path, 0)
        ]
        found += [(path, "file", place) for path, place in file_events.exclusive.items() if os.path.exists(path)]
        return found


def _probe(obj: Any) -> tuple[str, Callable[[], int]] | None:
    sem = getattr(obj, "_semlock", None) if type(obj).__module__ == "multiprocessing.synchronize" else None
    if sem is not None and hasattr(sem, "_count"):
        return ("semaphore" if "Semaphore" in type(obj).__name__ else "shared lock"), sem._count  # noqa: SLF001
    if type(obj).__module__ == "_thread" and hasattr(obj, "locked"):
        return "lock", lambda: int(obj.locked())
    if type(obj).__module__ == "threading" and isinstance(value := getattr(obj, "_value", None), int):
        return "lock", lambda: value - obj._value  # noqa: SLF001
    if type(obj).__module__ == "sqlite3" and hasattr(type(obj), "in_transaction"):
        return "transaction", lambda: int(obj.in_transaction)
    return None
