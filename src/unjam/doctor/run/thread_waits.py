"""How long the training thread waited for data; overlapping waits count once.

Some programs let several helper threads take the batches. The sum of their waits can exceed the
duration of the run, and does not show how long the training waited.
"""

from __future__ import annotations

import threading


class ThreadWaits:
    """How long each thread of this process waited for batches, in nanoseconds."""

    def __init__(self) -> None:
        self._waited: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def add(self, asked: int, got: int) -> None:
        """Add a wait of the calling thread; nested waits count once."""
        me = threading.get_ident()
        begun = max(asked, self._until.get(me, 0))
        self._waited[me] = self._waited.get(me, 0) + max(0, got - begun)
        self._until[me] = max(got, self._until.get(me, 0))

    def trainer(self) -> int | None:
        """Return the training thread: main if it waited, else the only one that did, else None."""
        main = threading.main_thread().ident
        if main in self._waited or not self._waited:
            return main
        return next(iter(self._waited)) if len(self._waited) == 1 else None

    def seconds(self) -> float:
        """Return how long the training thread waited."""
        return self._waited.get(self.trainer() or 0, 0) / 1e9
