"""The driver of `num_workers="auto"`: workers become more and fewer, and where none pays the batches are made here.

See NOTE [ Elastic ] and NOTE [ Pace ].
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from unjam.drive.alone import Alone
from unjam.drive.feed import Feed
from unjam.drive.pacing import Pacer
from unjam.engine import events as ev
from unjam.engine.elastic import ElasticMachine
from unjam.engine.machine import Config
from unjam.engine.pace import Setting


class ElasticFeed(Feed):
    """A feed whose size changes."""

    def __init__(self, config: Config, pacer: Pacer, *, parts: tuple[Any, ...]) -> None:
        pool, options, court, recorder, pinner = parts
        super().__init__(pool, config, options, court, recorder, pinner, pacer)
        self._own = ElasticMachine(config, size=pacer.setting.workers, depth=pacer.setting.depth)
        self._machine = self._own
        # weak: it holds the dataset, which may hold anything; see NOTE [ The end of an iterator ]
        self._alone: weakref.ref[Alone] | None = None

    def lend(self, alone: Alone) -> None:
        """Who makes batches while there is no worker, where that is allowed."""
        alone.pacer, alone.claim, alone.drawer = self._pacer, self._claim, self.drawer
        self._alone = weakref.ref(alone)

    def begin(self, draw: Callable[[], Any], shared_seed: int | None) -> None:
        """See `Feed`."""
        self._made_here = 0
        alone = None if self._alone is None else self._alone()
        if alone is not None:
            alone.begin()
        now = Setting(self._own.size, self._own.depth)
        if self._pacer is not None and self._pacer.setting != now:
            # decided in the last moment of the epoch before
            self._own.handle(ev.Resized(self._pacer.setting.workers, self._pacer.setting.depth))
        super().begin(draw, shared_seed)

    def _next(self, draw: Callable[[], Any]) -> Any:
        pacer, alone = self._pacer, None if self._alone is None else self._alone()
        if alone is None or pacer is None or self.closed or not self._is_at_rest(pacer, draw):
            return super()._next(draw)
        try:
            return alone.make_next(draw)
        finally:
            if alone.closed:
                self._close()
            elif alone.harms:
                pacer.keep_workers(alone.harms)

    def _claim(self) -> tuple[int, int]:
        """The next batch of this epoch is made here: the epoch, and its number."""
        number = self._number(self._own.drawn)
        self._made_here += 1
        return self._epochs, number

    def _is_at_rest(self, pacer: Pacer, draw: Callable[[], Any]) -> bool:
        if pacer.setting.workers or self._outcome is not None or self._todo:
            return False
        if pacer.wanted is not None and not self._own.ledger.entries:
            self._resize(pacer, draw)
        if not self._own.rests:
            return False
        if any(record.alive for record in self._own.workers):
            # those that were asked to leave are waited for here and there
            self.pool.wait(0)
            while self.pool.arrivals:
                self._take(self.pool.arrivals[0], draw)
                self.pool.arrivals.popleft()
        return True
