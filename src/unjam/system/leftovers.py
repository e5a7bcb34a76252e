"""Names for our entries in folders for temporary files, and removal of what killed processes left there.

A name says what created the entry: the kind, the process number, and an id of the set of processes that
the number belongs to, because other machines or containers may use the same folder. Any user can create
such a name, so we touch only entries of our own user, and no entry can cause an error.
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

from unjam.system.owned_fd import OwnedFd
from unjam.system.proc_files import read_text

# multiprocessing creates sockets below our folder, and the path of a socket must be short
LONGEST_FOLDER = 20
_NAME = re.compile(r"unjam-(?P<kind>run|check|lock)-(?P<world>\d{1,20}[0-9a-f]{8})-(?P<pid>[1-9]\d{0,9})-[\w.-]{1,64}")


def prefix(kind: str, pid: int | None = None) -> str:
    """The start of the names that a process (by default this one) uses in the temporary folder."""
    return f"unjam-{kind}-{_pid_space()}-{os.getpid() if pid is None else pid}-"


def remove_folder(path: str, kind: str, pid: int) -> None:
    """Remove our folder of this kind and process. The path is not trusted: nothing else can be removed."""
    top, name = os.path.split(os.path.normpath(path))
    found = _NAME.fullmatch(name)
    if found is None or not name.startswith(prefix(kind, pid)) or top != os.path.normpath(tempfile.gettempdir()):
        return
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)


def persistent_folders() -> list[str]:
    """Folders for files that must survive a program that empties the temporary folder, the best first."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    found = [own] if own and len(own) < LONGEST_FOLDER and _is_private(own) else []
    found += [one for one in ("/var/tmp", tempfile.gettempdir()) if os.access(one, os.W_OK | os.X_OK)]
    return list(dict.fromkeys(found))


def _is_private(folder: str) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def sweep(remove_check_folder: Callable[[str], None] | None = None) -> None:
    """Remove what ended processes of this user left behind; runs once per process.

    remove_check_folder: removes a folder of the kind "check", and what belongs to it elsewhere.
    """
    for top in {*persistent_folders(), tempfile.gettempdir()}:
        if (os.getpid(), top) not in _swept:
            _swept.add((os.getpid(), top))
            _sweep(top, remove_check_folder)


def _sweep(top: str, remove_check_folder: Callable[[str], None] | None) -> None:
    space, mine = _pid_space(), os.geteuid()
    try:
        names = os.listdir(top)
    except OSError:
        return
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or found["world"] != space or _is_running(int(found["pid"])):
            continue
        path = os.path.join(top, name)
        with contextlib.suppress(OSError, ValueError):
            status = os.lstat(path)
            if status.st_uid != mine:
                continue
            if stat.S_ISDIR(status.st_mode):
                if found["kind"] == "check" and remove_check_folder is not None:
                    remove_check_folder(path)
                shutil.rmtree(path, ignore_errors=True)
            elif stat.S_ISREG(status.st_mode) and found["kind"] == "lock" and not _is_locked(path):
                os.unlink(path)


_swept: set[tuple[int, str]] = set()


def _is_locked(path: str) -> bool:
    """Whether a lock file is in use: its creator has ended, but may have passed the lock on."""
    import fcntl  # noqa: PLC0415 - not on every system; without it there are no lock files

    fd = OwnedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _pid_space() -> str:
    """An id of the processes that share numbers: of one boot of a machine, and one container."""
    boot = read_text("/proc/sys/kernel/random/boot_id")[:8]
    try:
        if boot:
            return f"{os.stat('/proc/self/ns/pid').st_ino}{boot}"
    except OSError:
        pass
    return f"0{zlib.crc32(platform.node().encode('utf-8', 'replace')):08x}"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
