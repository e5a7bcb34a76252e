"""A lock between processes that the kernel releases when its holder dies.

`multiprocessing.Lock` is a number in shared memory: if a worker is killed while it holds the lock,
the lock stays locked and all others wait forever. The kernel holds a lock on an open file: the lock
ends when the file is closed, and the kernel closes the files of a process that dies.

NOTE [ Turns ]

Each `acquire` opens the lock's file again. So threads exclude each other as processes do, and no
file stays open between two uses. The kernel does not report when such a lock becomes free, so a
waiting process tries again every few milliseconds. A process that acquires and releases the lock in
a loop would then always win. So there are two bytes to lock: a process first locks the turn byte
and keeps it until it has the lock byte. Thus no other process can overtake it. The holder writes a
note about itself into the file, for the error message of a process that waits too long.

The filelock package has neither the turns nor the note, its locks cannot be used after a fork or be
pickled, and some of its versions empty a user's file that has the name of a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import select
import struct
import sys
import tempfile
import threading
import time
from multiprocessing import util
from typing import Any

from unjam.errors import LockTimeoutError
from unjam.system.file_owner import calling_line
from unjam.system.leftovers import prefix, sweep
from unjam.system.owned_fd import OwnedFd
from unjam.system.printable import printable_line
from unjam.system.private_files import open_own
from unjam.system.proc_files import is_number, read_text, stat_fields
from unjam.units import duration

# struct flock on 64-bit Linux (type, whence, start, length, process); the command F_OFD_SETLK
_FLOCK, _OFD_SETLK = "hhqqi4x", 37
_LOCK, _TURN = 0, 1
# seconds between two tries, at first and at most
SOON, LATER = 0.0005, 0.01
# the holder's note comes after the two bytes
_NOTE_AT, _NOTE_BYTES = 16, 496
_NOTE = re.compile(rb"\x00{%d}\d{1,10} (\d{1,20}|-) \d{1,12}\.\d{3} " % _NOTE_AT)
# locks that this process holds: path -> descriptor, thread, line; descriptors of waiting threads
_held: dict[str, tuple[int, int, str]] = {}
_waiting: set[int] = set()


def _after_fork() -> None:
    """Close the inherited descriptors: the child would keep the lock after its parent's death."""
    for fd in {*_waiting, *(fd for fd, _, _ in _held.values())}:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class InterprocessLock:
    """What `interprocess_lock` returns. Use it with `with`; it is not reentrant.

    path: the lock's own file.
    """

    def __init__(self, path: str, timeout: float, named: bool = True) -> None:  # noqa: FBT001, FBT002 - called by pickle
        self.path = path
        self.timeout = timeout
        self._named = named

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - multiprocessing's
        """Acquire the lock. After the timeout, raise a `LockTimeoutError` that names the holder.

        With `block=False`, return False at once if the lock is not free.
        """
        most = self.timeout if timeout is None else timeout
        mine = _held.get(self.path)
        if mine is not None and mine[1] == threading.get_ident():
            if not block:
                return False
            raise RuntimeError(
                f"this thread already holds {self.path} (acquired at {mine[2]}): acquiring it again would deadlock"
            )
        until, has_turn, pause, pausing = time.monotonic() + most, False, SOON, select.poll()
        fd = self._open()
        _waiting.add(fd)
        try:
            while True:
                has_turn = has_turn or _take(fd, _TURN)
                if has_turn and _take(fd, _LOCK):
                    if self._is_at_path(fd):
                        break
                    # we locked an unlinked file; retry with a new one
                    _close(fd)
                    fd, has_turn = -1, False
                    fd = self._open()
                    _waiting.add(fd)
                    continue
                if not block:
                    _close(fd)
                    return False
                if time.monotonic() >= until:
                    raise self._timeout_error(most, fd)
                pausing.poll(pause * 1000)
                pause = min(LATER, pause * 2)
            _free(fd, _TURN)
            line = calling_line()
            note = f"{os.getpid()} {_start_time(os.getpid())} {time.time():.3f} {line}"
            with contextlib.suppress(OSError):  # a full disk; the lock works without the note
                if _may_have_note(fd):
                    os.pwrite(fd, note.encode("utf-8", "replace")[:_NOTE_BYTES].ljust(_NOTE_BYTES), _NOTE_AT)
            _held[self.path] = (fd, threading.get_ident(), line)
            _waiting.discard(fd)
        except BaseException:
            if fd >= 0 and _held.get(self.path, (-1,))[0] != fd:
                _close(fd)
            raise
        return True

    def release(self) -> None:
        """Release the lock."""
        mine = _held.get(self.path)
        if mine is None:
            raise RuntimeError(f"{self.path} is not held by this process")
        # remove our entry first: as soon as the lock is free, another thread writes its own there
        _waiting.add(mine[0])
        del _held[self.path]
        _close(mine[0])

    def holder(self) -> str:
        """A text that names the current holder; empty if the lock is free."""
        mine = _held.get(self.path)
        if mine is not None:
            same = mine[1] == threading.get_ident()
            return f"{'this thread' if same else 'another thread of this process'}; acquired at {mine[2]}"
        try:
            fd = OwnedFd(self._open())
        except OSError:
            return ""
        return "" if _take(fd, _LOCK) else self._holder_text(fd)

    def locked(self) -> bool:
        """Whether the lock is held by any process."""
        return bool(self.holder())

    def _open(self) -> int:
        # The process that made an unnamed lock removes its file at exit. A process that still uses
        # the lock creates the file again.
        return open_own(self.path, os.O_RDWR | os.O_CREAT, 0o666 if self._named else 0o600)

    def _is_at_path(self, fd: int) -> bool:
        here = os.fstat(fd)
        try:
            there = os.lstat(self.path)
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def _holder_text(self, fd: int) -> str:
        note = os.pread(fd, _NOTE_BYTES, _NOTE_AT).decode(errors="replace").split(maxsplit=3)
        pid, started, since, line = (*note, "", "", "", "")[:4]
        if not is_number(pid) or _start_time(int(pid)) != started:
            return "a process that is not visible from here"
        with contextlib.suppress(ValueError):
            held = max(0.0, time.time() - float(since))
            command = read_text(f"/proc/{pid}/comm").strip() or "unknown"
            return printable_line(f"process {pid} ({command}) for {duration(held)}; acquired at {line.strip()}")
        return f"process {pid}"

    def _timeout_error(self, seconds: float, fd: int) -> LockTimeoutError:
        mine = _held.get(self.path)
        who = f"another thread of this process; acquired at {mine[2]}" if mine else self._holder_text(fd)
        return LockTimeoutError(f"waited {seconds:g} s for the lock {self.path}; it has been held by {who}")

    def __enter__(self) -> InterprocessLock:  # noqa: PYI034 - Python 3.10 has no Self
        self.acquire(timeout=self.timeout)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"interprocess_lock({self.path!r}, timeout={self.timeout:g})"

    def __reduce__(self) -> Any:
        return InterprocessLock, (self.path, self.timeout, self._named)


def _take(fd: int, byte: int) -> bool:
    """Lock one byte of an open file, if it is free now."""
    try:
        if sys.platform == "linux":
            fcntl.fcntl(fd, _OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
        elif byte == _LOCK:  # other systems have no turn byte
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _free(fd: int, byte: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(fd, _OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))
    elif byte == _LOCK:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _may_have_note(fd: int) -> bool:
    """Whether we may write a note: the file is empty or our lock file, not a user's data."""
    size = os.fstat(fd).st_size
    if not size:
        return True
    return size == _NOTE_AT + _NOTE_BYTES and _NOTE.match(os.pread(fd, size, 0)) is not None


def _close(fd: int) -> None:
    """Release a lock and close its file.

    We unlock explicitly, because a child that was forked meanwhile may have a copy of the
    descriptor, which would keep the lock.
    """
    with contextlib.suppress(OSError):
        for byte in (_LOCK, _TURN):
            _free(fd, byte)
    _waiting.discard(fd)
    os.close(fd)


def _start_time(pid: int) -> str:
    """The kernel's start time of a process, which together with its number identifies it; "-" if unknown."""
    return (stat_fields(pid)[19:20] or ["-"])[0]


def interprocess_lock(path: str | os.PathLike[str] | None = None, *, timeout: float = 60.0) -> InterprocessLock:
    """A lock between processes, for example if several of them write one file: `with lock: ...`.

    path: the file to protect, or any other path. The lock's own file is next to it, with `.lock` at
        the end. All processes that give the same path share the lock. None: a new lock, for this
        process and those that receive it by fork or pickle.
    timeout: seconds that `acquire` waits before a `LockTimeoutError` names the holder.

    If the holder dies in any way, the kernel releases the lock.
    """
    if not isinstance(timeout, (int, float)) or not timeout > 0:  # type: ignore[redundant-expr] # callers without types
        raise ValueError(f"timeout should be a positive number of seconds, but got timeout={timeout!r}")
    if path is None:
        sweep()
        made = os.path.join(tempfile.gettempdir(), f"{prefix('lock')}{secrets.token_hex(4)}.lock")
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # a negative priority runs after multiprocessing has waited for its children
        util.Finalize(None, _remove, args=(made, os.getpid()), exitpriority=-100)
        return InterprocessLock(made, timeout, named=False)
    where = os.path.realpath(os.fspath(path))
    folder = os.path.dirname(where)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"interprocess_lock({os.fspath(path)!r}): the folder {folder} does not exist")
    return InterprocessLock(where if where.endswith(".lock") else f"{where}.lock", timeout)


def _remove(path: str, pid: int) -> None:
    if pid == os.getpid():
        with contextlib.suppress(OSError):
            os.unlink(path)
