"""A lock between processes that the kernel releases when its holder dies.

`multiprocessing.Lock` is a number in shared memory: a worker that is killed while it holds it takes it along, and everybody waits for ever. A
lock on a file is the kernel's: it ends with the process. It also knows who holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
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

# struct flock as the kernel has it on 64-bit Linux: type, whence, start, length, process
_FLOCK = "hhqqi4x"
# seconds between two tries, at first and at most
SOON, LATER = 0.0005, 0.02
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# a process has one descriptor of a lock's file: closing a second one would release the lock
_files: dict[str, _File] = {}


class _File:
    """The lock's file in this process, and the lock between its threads."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.pid = os.getpid()
        self.threads = threading.Lock()
        self.holder: tuple[int, str] | None = None


def _file(path: str) -> _File:
    known = _files.get(path)
    if known is not None and known.pid != os.getpid():
        os.close(known.fd)
        known = None
    if known is None:
        # in a forked child: a new description, and a lock between threads that nobody of the parent holds
        known = _files[path] = _File(path)
    return known


class InterprocessLock:
    """What `interprocess_lock` makes. Use it with `with`; it is not reentrant."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.timeout = timeout

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - multiprocessing's
        """Take the lock. Past the time that it may take `LockTimeoutError` says who holds it; not blocking: False."""
        most = self.timeout if timeout is None else timeout
        file, began, pause = _file(self.path), time.monotonic(), SOON
        pausing = select.poll()
        if file.holder is not None and file.holder[0] == threading.get_ident():
            raise RuntimeError(
                f"this thread holds {self.path} already (taken at {file.holder[1]}): it would wait for itself"
            )
        if not file.threads.acquire(blocking=block, timeout=max(0.0, most) if block else -1):
            if not block:
                return False
            raise self._late(
                most, f"another thread of this process, at {file.holder[1] if file.holder else 'an unknown line'}"
            )
        try:
            while True:
                try:
                    fcntl.lockf(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not block:
                        file.threads.release()
                        return False
                if time.monotonic() - began >= most:
                    raise self._late(most, self.holder() or "a process that cannot be seen from here")
                pausing.poll(pause * 1000)
                pause = min(LATER, pause * 2)
            line = _line()
            os.pwrite(file.fd, f"{os.getpid()} {time.time():.3f} {line}\n".encode().ljust(512), 0)
            file.holder = (threading.get_ident(), line)
        except BaseException:
            if file.threads.locked():
                file.threads.release()
            raise
        return True

    def release(self) -> None:
        """Give it back."""
        file = _file(self.path)
        if file.holder is None:
            raise RuntimeError(f"{self.path} is not held by this process")
        file.holder = None
        fcntl.lockf(file.fd, fcntl.LOCK_UN)
        file.threads.release()

    def holder(self) -> str:
        """Who holds it now, in words; empty: nobody."""
        file = _file(self.path)
        if file.holder is not None:
            return f"this process, at {file.holder[1]}"
        if sys.platform != "linux":
            return "somebody" if file.threads.locked() else ""
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file.fd, fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            return ""
        written = os.pread(file.fd, 512, 0).decode(errors="replace").split(maxsplit=2)
        said, since, line = [*written, "", "", ""][:3]
        words = f"process {pid}{_command(pid)}"
        if said == str(pid):
            with contextlib.suppress(ValueError):
                words += f", for {max(0.0, time.time() - float(since)):.1f} s, taken at {line.strip()}"
        return words

    def locked(self) -> bool:
        """Whether anybody holds it."""
        return bool(self.holder())

    def _late(self, seconds: float, holder: str) -> LockTimeoutError:
        return LockTimeoutError(f"waited {seconds:g} s for the lock {self.path}; it is held by {holder}")

    def __enter__(self) -> InterprocessLock:  # noqa: PYI034 - Python 3.10 has no Self
        self.acquire(timeout=self.timeout)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"interprocess_lock({self.path!r}, timeout={self.timeout:g})"

    def __reduce__(self) -> Any:
        return InterprocessLock, (self.path, self.timeout)


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return f" ({comm.read().strip()})"
    except OSError:
        return ""


def _line() -> str:
    frame: Any = sys._getframe(1)  # noqa: SLF001 - the way to ask who calls
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def interprocess_lock(path: str | os.PathLike[str] | None = None, *, timeout: float = 60.0) -> InterprocessLock:
    """Lock out other processes, for the rare real need (several that write one file): `with lock: ...`.

    path: a file that stands for the lock; processes that name the same file share it, whether they are related or not. None: a new one, for
    this process and those that get it from it, by fork or by pickle. timeout: seconds that `acquire` waits before
    `LockTimeoutError` names the holder.

    When its holder dies, however it dies, the kernel releases it.
    """
    if not timeout > 0:
        raise ValueError(f"timeout should be a positive number of seconds, but got timeout={timeout!r}")
    if path is None:
        name = f"unjam-{os.getuid()}-{os.getpid()}-{secrets.token_hex(4)}.lock"
        made = os.path.join(tempfile.gettempdir(), name)
        _file(made)
        util.Finalize(None, _remove, args=(made, os.getpid()), exitpriority=0)
        return InterprocessLock(made, timeout)
    where = os.path.realpath(os.fspath(path))
    if not os.path.isdir(os.path.dirname(where)):
        raise FileNotFoundError(
            f"interprocess_lock({os.fspath(path)!r}): the folder {os.path.dirname(where)} does not exist"
        )
    return InterprocessLock(where, timeout)


def _remove(path: str, pid: int) -> None:
    if pid == os.getpid():
        with contextlib.suppress(OSError):
            os.unlink(path)
