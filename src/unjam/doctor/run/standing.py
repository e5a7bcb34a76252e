"""How long the training stood still: the waiting of the thread that trains, each moment once.

Some programs let helper threads take the batches, several side by side. Their waiting, added up, may be longer than the run, and is not
the training's.
"""

from __future__ import annotations

import threading


class Standing:
    """Nanoseconds that each thread of this process waited for batches."""

    def __init__(self) -> None:
        self._waited: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def add(self, asked: int, got: int) -> None:
        """This thread waited; a wait inside of another one counts once."""
        me = threading.get_ident()
        begun = max(asked, self._until.get(me, 0))
        self._waited[me] = self._waited.get(me, 0) + max(0, got - begun)
        self._until[me] = max(got, self._until.get(me, 0))

    def trainer(self) -> int | None:
        """The thread that trains: the main one if it ever waited, else the only one that did; of several others none."""
        main = threading.main_thread().ident
        if main in self._waited or not self._waited:
            return main
        return next(iter(self._waited)) if len(self._waited) == 1 else None

    def seconds(self) -> float:
        """What the training waited."""
        return self._waited.get(self.trainer() or 0, 0) / 1e9
