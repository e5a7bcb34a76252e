"""Applies the changes of a trial's plan: each removes one suspected cause and changes nothing else."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from unjam.doctor.check.inventory import Inventory, descriptor, lock_state, open_files
from unjam.doctor.facts.trial import FILE_LOCKS, Plan
from unjam.shared.dicts import SharedDict
from unjam.shared.lists import SharedList
from unjam.system.proc_files import descriptor_flags


def _no_file_locks() -> None:
    import fcntl  # noqa: PLC0415 - POSIX only

    fcntl.flock = lambda *_: None
    fcntl.lockf = lambda *_: None


def apply_changes(plan: Plan, inventory: Inventory) -> str:
    """Apply the plan's changes before the workers start. Returns why that is impossible, or ""."""
    for path in plan.release:
        found = inventory.found.get(path)
        if found is None or not _force_release(found.value):
            return f"{path} cannot be released"
    for path in plan.unlock:
        if path == FILE_LOCKS:
            _no_file_locks()
            continue
        found = inventory.found.get(path)
        if found is None or found.put is None:
            return f"{path} cannot be replaced"
        found.put(_NoLock())
    for path in plan.pack:
        found = inventory.found.get(path)
        if found is None or found.put is None:
            return f"{path} cannot be shared"
        try:
            found.put(SharedDict(found.value) if isinstance(found.value, dict) else SharedList(found.value))
        except Exception as error:  # noqa: BLE001 - any error is the reason
            return f"{path} cannot be shared: {error}"
    return ""


def apply_in_worker(plan: Plan, inventory: Inventory) -> None:
    """Apply the plan's changes in a worker, before its first sample."""
    if plan.threads:
        from unjam.loader.worker import thread_limits  # noqa: PLC0415 - imports torch

        thread_limits.cap_threads(plan.threads, loaded_elsewhere=True, forked=True)
        thread_limits.switch_off_opencv_threads()
    if plan.reopen:
        reopen(inventory)


def release_own_locks(plan: Plan, inventory: Inventory) -> None:
    """After a sample, release the plan's locks that it acquired and did not release."""
    for path in plan.release:
        found = inventory.found.get(path)
        if found is not None:
            state = lock_state(found.value)
            if state.mine and state.locked:  # not one that another worker holds
                _force_release(found.value)


def _force_release(lock: Any) -> bool:
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
    except Exception:  # noqa: BLE001 - only its owner can release it
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
    """Reopen the data files of this process, so that no other process moves their offsets."""
    own = {fd for found in inventory.found.values() if (fd := descriptor(found.value)) is not None}
    for fd in sorted(own | {fd for fd, target in open_files().items() if target.startswith("/")}):
        reopen_privately(fd)


def reopen_privately(fd: int, offset: int | None = None) -> None:
    """Reopen the file of a descriptor for this process only, at the same offset or at `offset`."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        offset = os.lseek(fd, 0, os.SEEK_CUR) if offset is None else offset
        flags = descriptor_flags(fd) & (os.O_ACCMODE | os.O_APPEND)
        own = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
        os.lseek(own, offset, os.SEEK_SET)
        os.dup2(own, fd, inheritable=False)
        os.close(own)
