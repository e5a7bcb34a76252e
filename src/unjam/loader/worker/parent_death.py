"""Kills a worker when its parent dies, even if the worker is stuck.

On Linux the kernel sends a parent-death signal. It also kills a process that is stuck in C code
while holding the interpreter lock. The kernel ties the signal to the *thread* that forked, so we
use it only if that thread lives as long as its process: in the fork server, which has one thread,
and for a fork from the main thread. Otherwise a small thread watches the parent.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

from unjam.deadlines import LIVENESS_CHECK
from unjam.system.owned_fd import readable

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; its only or main thread forked us."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before we set the signal
    else:
        die_with(parent)


def die_with(process: int) -> None:
    """Start a thread that kills this process when `process` (its parent or not) is gone."""
    threading.Thread(target=_watch, args=(process,), name="unjam-lifeline", daemon=True).start()


def _watch(parent: int) -> None:
    watch = ParentWatch(parent)
    while watch.alive(LIVENESS_CHECK.milliseconds):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


class ParentWatch:
    """Tells whether a process is alive: at once with a pidfd, otherwise by polling."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        try:
            self.fd: int | None = os.pidfd_open(parent)
        except (AttributeError, OSError):
            self.fd = None
        self._is_parent = os.getppid() == parent

    def alive(self, milliseconds: int) -> bool:
        """Wait at most `milliseconds` for the process to end; return whether it is still alive."""
        if self.fd is not None:
            return not readable(self.fd, milliseconds / 1000)
        select.poll().poll(min(milliseconds, 200))
        if self._is_parent:
            return os.getppid() == self._parent
        try:
            os.kill(self._parent, 0)
        except ProcessLookupError:
            return False
        return True
