"""Names of what we put into the temporary folder, and the removal of what killed processes left there.

A name tells who made it: a kind, the world that process numbers belong to (a container with the same folder counts anew), the number of
the process. Anybody can make a file of such a name, so only those of one's own user are looked at, and nothing that is found there raises.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile

_NAME = re.compile(r"unjam-(?P<kind>run|check|lock)-(?P<world>\d{1,20})-(?P<pid>[1-9]\d{0,9})-[\w.-]{1,64}")


def prefix(kind: str, pid: int | None = None) -> str:
    """What the name of something begins with that a process (this one, unless told) has in the temporary folder."""
    return f"unjam-{kind}-{_world()}-{os.getpid() if pid is None else pid}-"


def sweep() -> None:
    """Remove what processes of this user left behind that have ended."""
    world, mine = str(_world()), os.geteuid()
    top = tempfile.gettempdir()
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
            elif stat.S_ISREG(status.st_mode) and found["kind"] == "lock":
                os.unlink(path)


def _world() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
