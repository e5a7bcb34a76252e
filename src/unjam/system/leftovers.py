"""Names of what we put into the temporary folder, and the removal of what killed processes left there.

A name tells who made it: a kind, the world that process numbers belong to (another machine or container may have the same folder), the number of
the process. Anybody can make a file of such a name, so only those of one's own user are looked at, and nothing that is found there raises.
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

_NAME = re.compile(r"unjam-(?P<kind>run|check|lock)-(?P<world>\d{1,20}[0-9a-f]{8})-(?P<pid>[1-9]\d{0,9})-[\w.-]{1,64}")


def prefix(kind: str, pid: int | None = None) -> str:
    """What the name of something begins with that a process (this one, unless told) has in the temporary folder."""
    return f"unjam-{kind}-{_world()}-{os.getpid() if pid is None else pid}-"


def sweep() -> None:
    """Remove what processes of this user left behind that have ended; once in a process."""
    top = tempfile.gettempdir()
    if (os.getpid(), top) in _swept:
        return
    _swept.add((os.getpid(), top))
    world, mine = _world(), os.geteuid()
    try:
        names = os.listdir(top)
    except OSError:
        return
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or found["world"] != world or _lives(int(found["pid"])):
            continue
        path = os.path.join(top, name)
        with contextlib.suppress(OSError, ValueError):
            status = os.lstat(path)
            if status.st_uid != mine:
                continue
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(path, ignore_errors=True)
            elif stat.S_ISREG(status.st_mode) and found["kind"] == "lock" and not _is_locked(path):
                os.unlink(path)


_swept: set[tuple[int, str]] = set()


def _is_locked(path: str) -> bool:
    """Whether somebody holds a lock on a file: the process that made it is gone, but another may have it from there."""
    import fcntl  # noqa: PLC0415 - there are no locks where there is none

    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _world() -> str:
    """Which processes a number can mean: those of one boot of one machine, and of one container there."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{os.stat('/proc/self/ns/pid').st_ino}{boot.read(8)}"
    except OSError:
        return f"0{_digits(platform.node())}"


def _digits(text: str) -> str:
    """Eight digits for a text, the same in every process."""
    return f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
