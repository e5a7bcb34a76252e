"""Waits for a child process to end, for a limited time."""

from __future__ import annotations

import os
import select


def reap(pid: int, seconds: float) -> int | None:
    """The exit status of a child (negative for a signal), or None if it runs longer than `seconds`.

    For a process that is not our child, the status is 0 once it has ended.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        fd = -1
    try:
        if fd >= 0:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            if not poller.poll(int(seconds * 1000)):
                return None
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    finally:
        if fd >= 0:
            os.close(fd)
    return os.waitstatus_to_exitcode(status) if done else None
