"""A worker dies with its parent, whatever it is doing.

On Linux the kernel does it: a parent-death signal reaches a process that is stuck in C code with the interpreter locked.
The kernel ties that signal to the *thread* that forked, so it is used only where that thread lives as long as its
process: in the fork server, which has one thread, and for a fork from the main thread. Elsewhere a small thread watches
the parent.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

from unjam.loader.engine.deadlines import LOOK_AROUND

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent`, whose only or main thread forked it, is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it was gone before the signal was arranged
    else:
        die_with(parent)


def die_with(process: int) -> None:
    """Have a thread of this process watch another one, which need not be its parent, and end with it."""
    threading.Thread(target=_watch, args=(process,), name="unjam-lifeline", daemon=True).start()


def _watch(parent: int) -> None:
    sight = ParentSight(parent)
    while sight.alive(LOOK_AROUND.milliseconds):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


class ParentSight:
    """Sees whether a process still lives, at once where the kernel has pidfds, by looking otherwise."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        try:
            self.fd: int | None = os.pidfd_open(parent)
        except (AttributeError, OSError):
            self.fd = None
        self._is_parent = os.getppid() == parent

    def alive(self, milliseconds: int) -> bool:
        """Wait at most `milliseconds` for the process to end; return whether it still lives."""
        if self.fd is not None:
            poller = select.poll()
            poller.register(self.fd, select.POLLIN)
            return not poller.poll(milliseconds)
        select.poll().poll(min(milliseconds, 200))
        if self._is_parent:
            return os.getppid() == self._parent
        try:
            os.kill(self._parent, 0)
        except ProcessLookupError:
            return False
        return True
