"""Names for our entries in folders for temporary files, and removal of what killed processes left there.

A name says what made the entry: the kind, the process number, and an id of the set of processes
that the number belongs to, because other machines or containers may use the same folder. Any user
can create such a name, so we touch only entries of our own user, and no entry can raise an error.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable

# multiprocessing makes sockets below our folder, and the path of a socket is short
LONGEST_PLACE = 20
_NAME = re.compile(r"unjam-(?P<kind>run|check|lock)-(?P<world>\d{1,20}[0-9a-f]{8})-(?P<pid>[1-9]\d{0,9})-[\w.-]{1,64}")


def prefix(kind: str, pid: int | None = None) -> str:
    """The start of the names that a process (by default this one) uses in the temporary folder."""
    return f"unjam-{kind}-{_pid_space()}-{os.getpid() if pid is None else pid}-"


def remove(path: str, kind: str, pid: int) -> None:
    """Remove a folder of this name and process in the temporary folder, and nothing else: the path may come from anywhere."""
    top, name = os.path.split(os.path.normpath(path))
    found = _NAME.fullmatch(name)
    if found is None or not name.startswith(prefix(kind, pid)) or top != os.path.normpath(tempfile.gettempdir()):
        return
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)


def places() -> list[str]:
    """The folders for what outlives a program that empties the temporary folder, the best first."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    found = [own] if own and len(own) < LONGEST_PLACE and _is_private(own) else []
    found += [one for one in ("/var/tmp", tempfile.gettempdir()) if os.access(one, os.W_OK | os.X_OK)]
    return list(dict.fromkeys(found))


def _is_private(folder: str) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def sweep(remove_folder: Callable[[str], None] | None = None) -> None:
    """Remove what ended processes of this user left behind; runs once per process.

    remove_folder: removes a folder of the kind "check", and what belongs to it elsewhere.
    """
    for top in {*places(), tempfile.gettempdir()}:
        if (os.getpid(), top) not in _swept:
            _swept.add((os.getpid(), top))
            _sweep(top, remove_folder)


def _sweep(top: str, remove_folder: Callable[[str], None] | None) -> None:
    space, mine = _pid_space(), os.geteuid()
    try:
        names = os.listdir(top)
    except OSError:
        return
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or found["world"] != space or _lives(int(found["pid"])):
            continue
        path = os.path.join(top, name)
        with contextlib.suppress(OSError, ValueError):
            status = os.lstat(path)
            if status.st_uid != mine:
                continue
            if stat.S_ISDIR(status.st_mode):
                if found["kind"] == "check" and remove_folder is not None:
                    remove_folder(path)
                shutil.rmtree(path, ignore_errors=True)
            elif stat.S_ISREG(status.st_mode) and found["kind"] == "lock" and not _is_locked(path):
                os.unlink(path)


_swept: set[tuple[int, str]] = set()


def _is_locked(path: str) -> bool:
    """Whether a lock file is in use: its creator has ended, but may have passed the lock on."""
    import fcntl  # noqa: PLC0415 - not on every system; without it there are no lock files

    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _pid_space() -> str:
    """An id of the processes that share numbers: of one boot of a machine, and one container."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{os.stat('/proc/self/ns/pid').st_ino}{boot.read(8)}"
    except OSError:
        return f"0{_digits(platform.node())}"


def _digits(text: str) -> str:
    """Eight hexadecimal digits for a text, the same in every process."""
    return f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
