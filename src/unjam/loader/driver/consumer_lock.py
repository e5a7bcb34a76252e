"""Whose turn it is to ask for a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from unjam.loader.engine.deadlines import LOOK_AGAIN


class Turn:
    """One thread at a time; a second one waits, and one that asks from inside of its own asking is refused.

    The lock knows its owner, so an exception that a signal handler raises right after it was taken loses nothing: the thread
    that owns it and is not inside comes back and goes on with it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = False

    @property
    def mine(self) -> bool:
        """Whether it is this thread's turn."""
        return self._owned() and self._inside

    def take(self, closed: Callable[[], bool]) -> None:
        """Wait for the turn; StopIteration if there is nothing left to ask for."""
        self.check_idle()
        if not self._owned():
            while not self._lock.acquire(timeout=LOOK_AGAIN.seconds):
                if closed():
                    raise StopIteration
        self._inside = True

    def give_back(self) -> None:
        """The next one, please."""
        self._inside = False
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Take the turn without being anybody, for the end; False if whoever has it does not come back in time."""
        return self._lock.acquire(timeout=seconds)

    def check_idle(self) -> None:
        """Refuse what is asked for from inside of this thread's own turn: by the user's function, or by a sampler."""
        if self.mine:
            raise RuntimeError("the loader was asked for a batch while it was making one (in on_error or a sampler)")

    def _owned(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return] # noqa: SLF001 - what Condition asks it
