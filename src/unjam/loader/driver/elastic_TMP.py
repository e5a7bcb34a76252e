"""The driver of `num_workers="auto"`: workers become more and fewer.

See NOTE [ Elastic ] and NOTE [ Pace ].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unjam.loader.driver.auto_size import Pacer
from unjam.loader.driver.driver import Feed
from unjam.loader.engine import events as ev
from unjam.loader.engine.config import Config
from unjam.loader.engine.elastic_machine import ElasticMachine
from unjam.loader.engine.size_search import Setting


class ElasticFeed(Feed):
    """A feed whose size changes."""

    def __init__(self, config: Config, pacer: Pacer, *, parts: tuple[Any, ...]) -> None:
        pool, options, court, recorder, pinner = parts
        super().__init__(pool, config, options, court, recorder, pinner, pacer)
        self._own = ElasticMachine(config, size=pacer.setting.workers, depth=pacer.setting.depth)
        self._machine = self._own

    def begin(self, draw: Callable[[], Any], shared_seed: int | None) -> None:
        """See `Feed`."""
        now = Setting(self._own.size, self._own.depth)
        if self._pacer is not None and self._pacer.setting != now:
            # decided in the last moment of the epoch before
            self._own.handle(ev.Resized(self._pacer.setting.workers, self._pacer.setting.depth))
        super().begin(draw, shared_seed)
