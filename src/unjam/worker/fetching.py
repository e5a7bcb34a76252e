"""From indices to samples to a batch, with a sign of life before each sample.

What torch's own fetchers do, in the same order of calls, so that the results are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from unjam.transport.page import POSITION, SINCE, STOP, Stage


class Pulse(Protocol):
    """Where signs of life go. Before each sample two of its `words` are written and one is read, without a call."""

    words: Any

    def beat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """Say what is about to be done."""


class Interrupted(Exception):
    """The parent asked this worker to leave while it was making a batch."""


class IterableEnded(Exception):
    """The worker's iterable has no more samples."""


class NoPulse:
    """Nobody looks: for loading in the training process itself."""

    def __init__(self) -> None:
        self.words: Any = [0] * 8

    def beat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """Nothing."""


class Fetcher(Protocol):
    """Makes batches from indices."""

    def fetch(self, batch: int, index: Any) -> Any:
        """The batch for `index`; raises `IterableEnded` where there are no more samples."""


class MapFetcher:
    """Batches of a dataset with `__getitem__`."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, batched: bool, pulse: Pulse) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batched = batched
        self._pulse = pulse

    def fetch(self, batch: int, index: Any) -> Any:
        """See `Fetcher`."""
        pulse, dataset = self._pulse, self._dataset
        pulse.beat(Stage.GETITEM, batch)
        data: Any
        if not self._batched:
            data = dataset[index]
        elif getattr(dataset, "__getitems__", None):
            data = dataset.__getitems__(index)
        else:
            words, clock, data = pulse.words, time.monotonic_ns, []
            for position, one in enumerate(index):
                words[POSITION] = position
                words[SINCE] = clock()
                if words[STOP]:
                    raise Interrupted
                data.append(dataset[one])
        pulse.beat(Stage.COLLATE, batch)
        return self._collate(data)


class IterableFetcher:
    """Batches of a dataset with `__iter__`."""

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], *, batched: bool, drop_last: bool, pulse: Pulse
    ) -> None:
        self._iterator: Iterator[Any] = iter(dataset)
        self._collate = collate
        self._batched = batched
        self._drop_last = drop_last
        self._pulse = pulse
        self._ended = False

    def fetch(self, batch: int, index: Any) -> Any:
        """See `Fetcher`."""
        if self._ended:
            raise IterableEnded
        self._pulse.beat(Stage.GETITEM, batch)
        data: Any
        if self._batched:
            data = self._several(index)
        else:
            try:
                data = next(self._iterator)
            except StopIteration:
                raise IterableEnded from None
        self._pulse.beat(Stage.COLLATE, batch)
        return self._collate(data)

    def _several(self, index: Any) -> list[Any]:
        words, data = self._pulse.words, []
        for position, _ in enumerate(index):
            words[POSITION] = position
            words[SINCE] = time.monotonic_ns()
            if words[STOP]:
                raise Interrupted
            try:
                data.append(next(self._iterator))
            except StopIteration:
                self._ended = True
                break
        if not data or (self._drop_last and len(data) < len(index)):
            raise IterableEnded
        return data


def make_fetcher(
    dataset: Any,
    collate: Callable[[Any], Any],
    *,
    iterable: bool,
    batched: bool,
    drop_last: bool,
    pulse: Pulse,
) -> Fetcher:
    """The fetcher for this kind of dataset."""
    if iterable:
        return IterableFetcher(dataset, collate, batched=batched, drop_last=drop_last, pulse=pulse)
    return MapFetcher(dataset, collate, batched=batched, pulse=pulse)
