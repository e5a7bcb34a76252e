"""Draws indices from the sampler and turns them into batch requests. Nothing else calls the sampler."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler

from unjam.loader.driver.epoch_progress import EpochProgress, checksum
from unjam.loader.driver.settings import DriverSettings
from unjam.loader.worker.job import indices_of
from unjam.loader.worker.messages import BatchRequest
from unjam.loader.worker.sample_random import batch_seed

# how many earlier indices a batch gets as replacements for its failed samples
MOST_SPARES = 8


class StatefulDraw:
    """Draws indices from a sampler that can save its state.

    A new object for each call, see NOTE [ The end of an iterator ].
    """

    def __init__(self, draw: Any, sampler: Any, batches: Any) -> None:
        self._draw, self._sampler, self._batches = draw, sampler, batches

    def __call__(self) -> Any:
        """Return the next indices."""
        return self._draw()

    def state(self, count: int) -> Any:
        """Return the sampler's state after a batch of `count` indices, and whether that was its last batch."""
        batches = self._batches
        ended = type(batches) is BatchSampler and not batches.drop_last and count < batches.batch_size
        return {"state": copy.deepcopy(self._sampler.state_dict()), "ended": ended}


class IndexSource:
    """The sampler, as the driver sees it. `spares`: recent indices may replace failed samples."""

    def __init__(self, settings: DriverSettings, *, spares: bool) -> None:
        self._batched, self._seed = settings.batched, settings.seed
        self._keeps_spares = spares
        self._recent: deque[Any] = deque(maxlen=MOST_SPARES)
        # of the epoch: its number, the number of the next batch in it, those that are skipped, and the checksum so far
        self._epoch = self._number = self._indices_checksum = 0
        self._skipped: frozenset[int] = frozenset()
        self._progress = EpochProgress()
        # a signal handler raised while the sampler was running
        self._interrupted = False
        # what the sampler returned, until it is in a request: a signal handler may raise in between
        self._returned: list[Any] = []
        # returns the next indices or raises StopIteration; set only during `begin` and `next`
        self.draw: Callable[[], Any] | None = None
        # Requests drawn in this epoch, kept until the loader's first batch is delivered: a restart
        # on forked workers needs them again.
        self.undelivered: list[BatchRequest] | None = []
        self._drawn: deque[BatchRequest] = deque()

    def begin(self, progress: EpochProgress, drawn: Iterable[BatchRequest] = ()) -> None:
        """Begin an epoch, or resume one: the sampler has already given `progress.position` batches.

        `drawn`: requests that another source drew for the beginning of this epoch; they come first.
        """
        self._progress = progress
        self._epoch, self._number, self._indices_checksum = progress.epoch, progress.position, progress.indices_checksum
        self._skipped = frozenset(progress.finished_ahead)
        self._recent = deque(progress.spares, MOST_SPARES)
        self._drawn, self._returned, self._interrupted = deque(drawn), [], False
        if self.undelivered is not None:
            self.undelivered = []

    def next(self, batch: int) -> BatchRequest:
        """Draw the indices of a batch; raise StopIteration or whatever the sampler raises."""
        was_interrupted, self._interrupted = self._interrupted, True
        self._progress.sampler_was_asked = True
        assert self.draw is not None, "called outside next()"
        try:
            request = self._repeated(batch) if self._drawn else self._request(batch)
            while request.number in self._skipped:
                self._progress.drew_again(request)
                request = self._request(batch)
        except StopIteration:
            self._interrupted = False
            if was_interrupted:
                # An exception ends a generator. Without this error the epoch would end early,
                # silently.
                raise RuntimeError(
                    "a signal handler interrupted the sampler, which cannot continue: begin a new epoch"
                ) from None
            raise
        except Exception:
            self._interrupted, self._returned = False, []  # the same indices would fail again, every time
            raise
        self._interrupted = False
        if self.undelivered is not None:
            # copy the indices: samplers may reuse their lists
            index = list(request.index) if type(request.index) is list else request.index
            self.undelivered.append(replace(request, index=index))
        return request

    def _repeated(self, batch: int) -> BatchRequest:
        # The sampler is further on by now, so its state after these indices cannot be read again.
        request = self._drawn.popleft()
        self._recent.extend(request.indices)
        self._number, self._indices_checksum = request.number + 1, request.indices_checksum
        return replace(request, batch=batch, decisions={}, sent_to=None)

    def _request(self, batch: int) -> BatchRequest:
        assert self.draw is not None, "called outside next()"
        if not self._returned:
            self._returned.append(self.draw())
        index = self._returned[0]
        if self._batched and type(index) is not list and isinstance(index, Iterator):
            index = self._returned[0] = list(index)
        # copy the indices now: samplers may reuse their lists
        indices = indices_of(index, batched=self._batched)
        spares = tuple(self._recent) if self._keeps_spares else ()
        request = BatchRequest(
            batch,
            self._number,
            seed=None if self._seed is None else batch_seed(self._seed, self._epoch, self._number),
            index=index,
            indices=indices,
            spares=spares,
            indices_checksum=checksum(indices, self._indices_checksum),
            sampler_state=self.draw.state(len(indices)) if isinstance(self.draw, StatefulDraw) else None,
        )
        if self._keeps_spares:
            self._recent.extend(indices)
        self._number, self._indices_checksum, self._returned = request.number + 1, request.indices_checksum, []
        return request
