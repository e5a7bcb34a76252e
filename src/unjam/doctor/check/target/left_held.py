"""Finds what loading a sample took and did not give back: locks, semaphores, open transactions, files that stand for a lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from unjam.doctor.check.inventory import walk
from unjam.doctor.check.target import openers

MOST = 24


class HeldThings:
    """The locks and databases that a dataset reaches, and how much of each this process holds."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        self._roots = (dataset, collate)
        self._probes: dict[str, tuple[str, Callable[[], int]]] = {}
        self.find()

    def find(self) -> None:
        """Look for them again: the first sample may have made some."""
        dataset, collate = self._roots
        for found in walk({"dataset": dataset, "collate_fn": collate}):
            probe = _probe(found.obj)
            if probe is not None and len(self._probes) < MOST:
                self._probes.setdefault(found.path, probe)

    def read(self) -> dict[str, int]:
        """How often this process holds each of them."""
        openers.created.clear()
        return {path: count() for path, (_, count) in self._probes.items()}

    def left(self, before: dict[str, int]) -> list[tuple[str, str, Any]]:
        """What is held now and was not before: path, kind, and the line of a file."""
        alone = threading.active_count() == 1  # otherwise another thread may hold a lock of this process
        probes = {path: one for path, one in self._probes.items() if alone or one[0] != "lock"}
        found: list[tuple[str, str, Any]] = [
            (path, kind, None) for path, (kind, count) in probes.items() if count() > before.get(path, 0)
        ]
        found += [(path, "file", place) for path, place in openers.created.items() if os.path.exists(path)]
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
