"""From what a sampler gives to a batch that is to be made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from unjam.loader.driver.settings_TMP import Options, listed
from unjam.loader.pool.protocol import Work
from unjam.loader.worker.spec import batch_seed

# indices drawn before a batch that may stand in for a failed sample of it
MOST_SPARES = 8


class Drawer:
    """Makes work of indices, in the order in which they are drawn. `spares`: samples may be replaced by recent ones."""

    def __init__(self, options: Options, *, spares: bool) -> None:
        self._options = options
        self._spares = spares
        self._recent: deque[Any] = deque(maxlen=MOST_SPARES)

    def begin(self) -> None:
        """An epoch begins."""
        self._recent.clear()

    def work(self, batch: int, number: int, epoch: int, index: Any) -> Work:
        """`batch`: its number for ever; `number`: in its epoch."""
        batched, base = self._options.batched, self._options.seed
        if batched and type(index) is not list and isinstance(index, Iterator):
            index = list(index)
        # samplers use their lists again: what was drawn is kept as it was
        indices = listed(index) if batched else (index,)
        spares = tuple(self._recent) if self._spares else ()
        if self._spares:
            self._recent.extend(indices)
        seed = None if base is None else batch_seed(base, epoch, number)
        return Work(batch, number, index, indices, batched, spares, seed)
