"""Torch's fetchers with a clock: when a batch was begun, collated, done, and which of its samples took longest.

This runs in torch's own workers, so it must cost next to nothing and never raise: a clock reading for each sample, one write to mapped
memory for each batch.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from unjam.doctor.run.batch_file import MOST_DETAIL, Page, name_of
from unjam.doctor.run.settings import Settings

_now = time.monotonic_ns
# nanoseconds: samples below this are quick; batches of them in a row before they are no longer timed one by one
QUICK, SURE = 50_000, 8


# the number of the present iterator, for those that load in the program's own process
_inline = [0]


def next_inline() -> int:
    """A name for the files of the next iterator without workers; torch's seeds are not negative."""
    _inline[0] += 1
    return -_inline[0]


class Clock:
    """The times of one fetcher's present batch."""

    __slots__ = ("_detail", "_left", "_page", "collated", "last", "longest", "quick", "samples", "slowest", "stamps")

    def __init__(self, settings: Settings) -> None:
        self._page: Page | None = None
        self._detail = -1
        self._left = MOST_DETAIL
        self.longest = self.collated = self.samples = self.last = self.quick = 0
        self.slowest: Any = ""
        self.stamps: list[int] | None = [] if settings.trace else None
        seed, worker = _who()
        try:
            path = name_of(settings.folder, seed, worker)
            self._page = Page(path)
            if settings.trace:
                self._detail = os.open(f"{path}.samples", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            self._page = None  # no room to write: the program goes on without us

    def begin(self) -> None:
        """Another batch."""
        self.longest = self.collated = self.samples = 0
        if self.stamps:
            self.stamps.clear()

    def done(self, begun: int, done: int) -> None:
        """The batch is made."""
        if self._page is not None:
            collated = self.collated or done
            idle = begun - self.last if self.last else 0
            self._page.batch(begun, collated, done, self.samples, self.longest, self.slowest, idle)
            if self._detail >= 0 and self.stamps:
                self._write(begun, done)
        self.last = done

    def _write(self, begun: int, done: int) -> None:
        import array  # noqa: PLC0415 - for a trace only

        stamps = self.stamps or []
        data = array.array("q", [len(stamps) + 2, begun, *stamps, done]).tobytes()
        stamps.clear()
        if len(data) <= self._left:
            self._left -= len(data)
            try:
                os.write(self._detail, data)
            except OSError:
                self._left = 0


def _who() -> tuple[int, int]:
    """The seed that this worker's epoch began with, and its number; -1 for the main process."""
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - it is imported by now

    info = get_worker_info()
    return (info.seed - info.id, info.id) if info is not None else (-_inline[0], -1)


class _Samples:
    """A dataset as its fetcher sees it."""

    def __init__(self, dataset: Any, clock: Clock) -> None:
        self.unjam_inner = self._dataset = dataset
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __getitem__(self, index: Any) -> Any:
        begun = _now()
        value = self._dataset[index]
        now = _now()
        clock = self._clock
        clock.samples += 1
        if now - begun > clock.longest:
            clock.longest = now - begun
            clock.slowest = index
        if clock.stamps is not None:
            clock.stamps.append(now)
        return value


class _Stream:
    """The iterator of a dataset as its fetcher sees it."""

    def __init__(self, inner: Iterator[Any], clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._count = 0

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        begun = _now()
        value = next(self._inner)
        now = _now()
        clock = self._clock
        clock.samples += 1
        self._count += 1
        if now - begun > clock.longest:
            clock.longest = now - begun
            clock.slowest = f"number {self._count}"
        if clock.stamps is not None:
            clock.stamps.append(now)
        return value


def _timed(collate: Any, clock: Clock) -> Any:
    def timed(data: Any) -> Any:
        clock.collated = _now()
        return collate(data)

    return functools.update_wrapper(timed, collate) if hasattr(collate, "__dict__") else timed


def _follow(fetcher: Any, clock: Clock, took: int) -> None:
    """Single samples are timed where they take long enough for that to cost nothing; quick ones only by the batch."""
    timed = type(fetcher.dataset) is _Samples
    quick = took < QUICK * clock.samples
    if timed and quick:
        clock.quick += 1
        if clock.quick >= SURE:
            fetcher.dataset = fetcher.dataset.unjam_inner
    elif not quick:
        clock.quick = 0
        if not timed and not getattr(fetcher.dataset, "__getitems__", None):
            fetcher.dataset = _Samples(fetcher.dataset, clock)


def time_fetchers(module: ModuleType, settings: Settings) -> None:
    """Put the clock into torch's two fetchers."""
    if not settings.folder:
        return
    _patch(module._MapDatasetFetcher, settings, stream=False)  # noqa: SLF001 - torch's names
    _patch(module._IterableDatasetFetcher, settings, stream=True)  # noqa: SLF001 - as above


def _patch(kind: Any, settings: Settings, *, stream: bool) -> None:
    make, fetch = kind.__init__, kind.fetch

    @functools.wraps(make)
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        make(this, *args, **kwargs)
        this.unjam_clock = clock = Clock(settings)
        this.collate_fn = _timed(this.collate_fn, clock)
        if stream:
            this.dataset_iter = _Stream(this.dataset_iter, clock)
        elif not getattr(this.dataset, "__getitems__", None):
            this.dataset = _Samples(this.dataset, clock)

    @functools.wraps(fetch)
    def fetched(this: Any, possibly_batched_index: Any) -> Any:
        clock, begun = this.unjam_clock, _now()
        clock.begin()  # the batch before may have ended in an exception
        data = fetch(this, possibly_batched_index)
        now = _now()
        if not clock.samples:
            clock.samples = len(possibly_batched_index) if isinstance(possibly_batched_index, list) else 1
        if not stream and clock.stamps is None:
            _follow(this, clock, now - begun)
        clock.done(begun, now)
        return data

    kind.__init__, kind.fetch = made, fetched
