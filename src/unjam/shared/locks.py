"""A lock between processes that the kernel releases when its holder dies.

`multiprocessing.Lock` is a number in shared memory: a worker that is killed while it holds it takes it along, and everybody waits for ever. A
lock on an open file is the kernel's: it ends when the file is closed, and a process that dies closes its files.

NOTE [ Turns ]

Each `acquire` opens the lock's file anew, so threads exclude each other as processes do, and nothing is open between two uses. Nobody is told
when a lock becomes free, so one asks again every few milliseconds; whoever takes and releases it in a loop would always be
first. So there are two bytes: who wants the lock takes the turn first and holds it until he has the lock, and so the next in turn
is not overtaken. The holder writes its name into the file, for those who wait in vain.
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
from unjam.system.printable import printable_line
from unjam.system.private_files import open_own

# struct flock as the kernel has it on 64-bit Linux: type, whence, start, length, process; and the command for locks of open files
_FLOCK, _OFD_SETLK = "hhqqi4x", 37
_LOCK, _TURN = 0, 1
# seconds between two tries, at first and at most
SOON, LATER = 0.0005, 0.01
# the note lies behind the two bytes
_NOTE_AT, _NOTE_BYTES = 16, 496
_NOTE = re.compile(rb"\x00{%d}\d{1,10} (\d{1,20}|-) \d{1,12}\.\d{3} " % _NOTE_AT)
# what this process holds: path -> descriptor, thread, line; and the descriptors of those who wait
_held: dict[str, tuple[int, int, str]] = {}
_waiting: set[int] = set()


def _after_fork() -> None:
    """A child has a copy of the descriptor, and so would keep the lock if its parent died."""
    for fd in {*_waiting, *(fd for fd, _, _ in _held.values())}:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class InterprocessLock:
    """What `interprocess_lock` makes. Use it with `with`; it is not reentrant. `path`: the lock's own file."""

    def __init__(self, path: str, timeout: float, named: bool = True) -> None:  # noqa: FBT001, FBT002 - called by pickle
        self.path = path
        self.timeout = timeout
        self._named = named

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - multiprocessing's
        """Take the lock. Past the time that it may take `LockTimeoutError` says who holds it; not blocking: False."""
        most = self.timeout if timeout is None else timeout
        mine = _held.get(self.path)
        if mine is not None and mine[1] == threading.get_ident():
            if not block:
                return False
            raise RuntimeError(f"this thread holds {self.path} already (taken at {mine[2]}): it would wait for itself")
        until, has_turn, pause, pausing = time.monotonic() + most, False, SOON, select.poll()
        fd = self._open()
        _waiting.add(fd)
        try:
            while True:
                has_turn = has_turn or _take(fd, _TURN)
                if has_turn and _take(fd, _LOCK):
                    if self._is_there(fd):
                        break
                    # somebody has removed the file: what is locked now is nobody's
                    _close(fd)
                    fd, has_turn = -1, False
                    fd = self._open()
                    _waiting.add(fd)
                    continue
                if not block:
                    _close(fd)
                    return False
                if time.monotonic() >= until:
                    raise self._late(most, fd)
                pausing.poll(pause * 1000)
                pause = min(LATER, pause * 2)
            _free(fd, _TURN)
            line = calling_line()
            note = f"{os.getpid()} {_started(os.getpid())} {time.time():.3f} {line}"
            with contextlib.suppress(OSError):  # a full disk; the note is for others to read
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
        """Give it back."""
        mine = _held.get(self.path)
        if mine is None:
            raise RuntimeError(f"{self.path} is not held by this process")
        # first the name, since the next thread writes its own there as soon as the lock is free
        _waiting.add(mine[0])
        del _held[self.path]
        _close(mine[0])

    def holder(self) -> str:
        """Who holds it now, in words; empty: nobody."""
        mine = _held.get(self.path)
        if mine is not None:
            same = mine[1] == threading.get_ident()
            return f"{'this thread' if same else 'another thread of this process'}, taken at {mine[2]}"
        try:
            fd = self._open()
        except OSError:
            return ""
        try:
            return "" if _take(fd, _LOCK) else self._who(fd)
        finally:
            os.close(fd)

    def locked(self) -> bool:
        """Whether anybody holds it."""
        return bool(self.holder())

    def _open(self) -> int:
        # the file of a lock without a name goes with the process that made it; whoever has the lock from there makes it anew
        return open_own(self.path, os.O_RDWR | os.O_CREAT, 0o666 if self._named else 0o600)

    def _is_there(self, fd: int) -> bool:
        here = os.fstat(fd)
        try:
            there = os.lstat(self.path)
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def _who(self, fd: int) -> str:
        said, began, since, line = [
            *os.pread(fd, _NOTE_BYTES, _NOTE_AT).decode(errors="replace").split(maxsplit=3),
            "",
            "",
            "",
            "",
        ][:4]
        if not (said.isdecimal() and said.isascii() and len(said) <= 10) or _started(int(said)) != began:
            return "a process that cannot be seen from here"
        with contextlib.suppress(ValueError):
            held = max(0.0, time.time() - float(since))
            return printable_line(f"process {said}{_command(int(said))}, for {held:.1f} s, taken at {line.strip()}")
        return f"process {said}"

    def _late(self, seconds: float, fd: int) -> LockTimeoutError:
        mine = _held.get(self.path)
        who = f"another thread of this process, taken at {mine[2]}" if mine else self._who(fd)
        return LockTimeoutError(f"waited {seconds:g} s for the lock {self.path}; it is held by {who}")

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
        elif byte == _LOCK:  # elsewhere there are no turns
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
    """Whether a file is empty or a lock file of ours: what anything else holds is somebody's data."""
    size = os.fstat(fd).st_size
    if not size:
        return True
    return size == _NOTE_AT + _NOTE_BYTES and _NOTE.match(os.pread(fd, size, 0)) is not None


def _close(fd: int) -> None:
    """Let go of a lock, and of its file: a child that was forked meanwhile may have a copy of the descriptor, which would keep it."""
    with contextlib.suppress(OSError):
        for byte in (_LOCK, _TURN):
            _free(fd, byte)
    _waiting.discard(fd)
    os.close(fd)


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return f" ({comm.read().strip()})"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in the kernel's count: with its number, its name for ever."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "-"


def interprocess_lock(path: str | os.PathLike[str] | None = None, *, timeout: float = 60.0) -> InterprocessLock:
    """Lock out other processes, for the rare real need (several that write one file): `with lock: ...`.

    path: what is protected, or any name; the lock's own file is beside it, with `.lock` at the end. Processes that name the same path share it,
    whether they are related or not. None: a new lock, for this process and those that get it from it, by fork or by pickle.
    timeout: seconds that `acquire` waits before `LockTimeoutError` names the holder.

    When its holder dies, however it dies, the kernel releases it.
    """
    if not isinstance(timeout, (int, float)) or not timeout > 0:  # type: ignore[redundant-expr] # whoever has no types
        raise ValueError(f"timeout should be a positive number of seconds, but got timeout={timeout!r}")
    if path is None:
        sweep()
        made = os.path.join(tempfile.gettempdir(), f"{prefix('lock')}{secrets.token_hex(4)}.lock")
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # below zero: after multiprocessing has waited for its children
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
