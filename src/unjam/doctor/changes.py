"""The changes of a trial, carried out: what would remove one suspected cause, and nothing else."""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
from collections.abc import Iterator
from typing import Any

from unjam.doctor.inventory import Inventory, descriptor, flags_of, lock_facts, open_files
from unjam.evidence.trial import Plan

FILE_LOCKS = "file locks"


def _no_file_locks() -> None:
    import fcntl  # noqa: PLC0415 - Linux and its like

    fcntl.flock = lambda *_: None
    fcntl.lockf = lambda *_: None


def ease(plan: Plan, inventory: Inventory) -> str:
    """Before the workers start. Returns why it cannot be done, or nothing."""
    for path in plan.release:
        found = inventory.found.get(path)
        if found is None or not _set_free(found.obj):
            return f"{path} cannot be released"
    for path in plan.unlock:
        if path == FILE_LOCKS:
            _no_file_locks()
            continue
        found = inventory.found.get(path)
        if found is None:
            return f"{path} cannot be replaced"
        found.replace(_NoLock())
    for path in plan.pack:
        found = inventory.found.get(path)
        if found is None:
            return f"{path} cannot be packed"
        try:
            found.replace(Packed(found.obj))
        except Exception as error:  # noqa: BLE001 - whatever cannot be pickled cannot be packed
            return f"{path} cannot be packed: {error}"
    return ""


def ease_worker(plan: Plan, inventory: Inventory) -> None:
    """In a worker, before its first sample."""
    if plan.threads:
        from unjam.worker.hygiene import cap_threads  # noqa: PLC0415 - imports torch

        cap_threads(plan.threads, loaded_elsewhere=True)
    if plan.reopen:
        reopen(inventory)


def release_mine(plan: Plan, inventory: Inventory) -> None:
    """After each sample: what the sample took and did not give back."""
    for path in plan.release:
        found = inventory.found.get(path)
        if found is not None:
            facts = lock_facts(found.obj)
            if facts.get("mine", True) and facts.get("locked"):  # never what another worker holds
                _set_free(found.obj)


def _set_free(lock: Any) -> bool:
    inner = getattr(lock, "_semlock", None) or getattr(getattr(lock, "_lock", None), "_semlock", None)
    if inner is not None:
        with contextlib.suppress(Exception):
            if inner._is_zero():  # noqa: SLF001 - there is no public way
                inner.release()
        return not inner._is_zero()  # noqa: SLF001
    for one in (lock, getattr(lock, "_lock", None), getattr(lock, "_block", None)):
        fresh = getattr(one, "_at_fork_reinit", None)
        if callable(fresh):
            fresh()
            return True
    try:
        lock.release()
    except Exception:  # noqa: BLE001 - held by somebody who must release it himself
        return False
    return True


class _NoLock:
    """A lock that never waits."""

    def acquire(self, *_: Any, **__: Any) -> bool:
        return True

    def release(self) -> None:
        pass

    def locked(self) -> bool:
        return False

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


def reopen(inventory: Inventory) -> None:
    """Give this process files of its own behind the same descriptor numbers: same place, nobody else moves them."""
    for fd in sorted(_descriptors(inventory)):
        own_file(fd)


def own_file(fd: int, place: int | None = None) -> None:
    """Put an open file of this process's own behind a descriptor, at the same place or another."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        place = os.lseek(fd, 0, os.SEEK_CUR) if place is None else place
        flags = flags_of(fd) & (os.O_ACCMODE | os.O_APPEND)
        own = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
        os.lseek(own, place, os.SEEK_SET)
        os.dup2(own, fd, inheritable=False)
        os.close(own)


def _descriptors(inventory: Inventory) -> set[int]:
    known = {fd for found in inventory.found.values() if (fd := descriptor(found.obj)) is not None}
    return known | {fd for fd, target in open_files().items() if target.startswith("/")}


class Packed:
    """A list or dict whose items lie pickled in one buffer: nothing of it is touched when an item is read."""

    def __init__(self, items: Any) -> None:
        self._keys = list(items) if isinstance(items, dict) else None
        pieces, places = [], [0]
        for item in items.values() if isinstance(items, dict) else items:
            pieces.append(pickle.dumps(item, protocol=5))
            places.append(places[-1] + len(pieces[-1]))
        import numpy as np  # noqa: PLC0415 - the program may do without

        self._data = b"".join(pieces)
        self._places = np.asarray(places, dtype=np.int64)
        self._at = {key: place for place, key in enumerate(self._keys)} if self._keys is not None else None

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, key: Any) -> Any:
        if self._at is not None:
            return self._item(self._at[key])
        if isinstance(key, slice):
            return [self._item(place) for place in range(*key.indices(len(self)))]
        return self._item(range(len(self))[key])

    def _item(self, place: int) -> Any:
        return pickle.loads(self._data[self._places[place] : self._places[place + 1]])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys) if self._keys is not None else (self._item(place) for place in range(len(self)))

    def keys(self) -> list[Any]:
        """As a dict's."""
        return list(self._keys or ())

    def values(self) -> list[Any]:
        """As a dict's."""
        return [self._item(place) for place in range(len(self))]

    def items(self) -> list[tuple[Any, Any]]:
        """As a dict's."""
        return list(zip(self.keys(), self.values(), strict=True))

    def get(self, key: Any, default: Any = None) -> Any:
        """As a dict's."""
        return self.get(key, default)

    def __contains__(self, key: Any) -> bool:
        return key in self._at if self._at is not None else any(one == key for one in self)
