"""A lock that lets one thread at a time ask a loader for a batch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from unjam.deadlines import STALL_CHECK


class ConsumerLock:
    """Makes a second thread wait; refuses a nested request of the same thread.

    The lock knows its owner and the frame that entered. If a signal handler raises right after the lock
    was acquired or right before it is released, that frame is gone: the thread still owns the lock but is
    not inside a request, and can enter again.
    """

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        self._inside: FrameType | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this thread is inside a request."""
        if not self._owned() or self._inside is None:
            return False
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way
        while frame is not None and frame is not self._inside:
            frame = frame.f_back
        return frame is not None

    def enter(self, closed: Callable[[], bool]) -> None:
        """Acquire the lock; raise StopIteration if the loader is closed meanwhile."""
        self.check_idle()
        if not self._owned():
            while not self._lock.acquire(timeout=STALL_CHECK.seconds):
                if closed():
                    raise StopIteration
        self._inside = sys._getframe(1)  # noqa: SLF001 - as above

    def leave(self) -> None:
        """Release the lock."""
        self._inside = None
        self._lock.release()

    def enter_to_close(self, seconds: float) -> bool:
        """Acquire the lock for shutdown, without recording a frame. Return False on timeout."""
        return bool(self._lock.acquire(timeout=seconds))

    def check_idle(self) -> None:
        """Raise if this thread is inside a request: in `on_error` or in a sampler."""
        if self.is_mine:
            raise RuntimeError("cannot request a batch from on_error or a sampler: the loader is already making one")

    def _owned(self) -> bool:
        return bool(self._lock._is_owned())  # noqa: SLF001 - as threading.Condition does
