"""Waits for a child process to end, for a limited time."""

from __future__ import annotations

import contextlib
import os

from unjam.system.owned_fd import OwnedFd, readable


def reap(pid: int, seconds: float) -> int | None:
    """The exit status of a child (negative for a signal), or None if it runs longer than `seconds`.

    For a process that is not our child, the status is 0 once it has ended.
    """
    with contextlib.suppress(ProcessLookupError):
        if not readable(OwnedFd(os.pidfd_open(pid)), seconds):
            return None
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if done else None
