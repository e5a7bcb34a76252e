"""Times torch's fetchers: start, collate and end of each batch, and its slowest sample.

This runs in torch's own workers, so it must be very cheap and never raise: it reads the clock for
each sample, and writes to mapped memory once per batch.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from unjam.doctor.run.batch_file import MOST_DETAIL, BatchFile, name_of
from unjam.doctor.run.patches import PATCHES
from unjam.doctor.run.settings import Settings

_now = time.monotonic_ns
# nanoseconds: faster samples are quick; after SURE batches of them we stop timing single samples
QUICK, SURE = 50_000, 8


# number of the current iterator that loads in the program's process
_inline = [0]


def next_inline() -> int:
    """Return a seed for the next iterator without workers; negative, unlike torch's seeds."""
    _inline[0] += 1
    return -_inline[0]


class FetchClock:
    """The times of the current batch of one fetcher."""

    __slots__ = ("_detail", "_left", "_page", "collated", "longest", "quick", "samples", "slowest", "stamps")

    def __init__(self, settings: Settings) -> None:
        self._page: BatchFile | None = None
        self._detail = -1
        self._left = MOST_DETAIL
        self.longest = self.collated = self.samples = self.quick = 0
        self.slowest: Any = ""
        self.stamps: list[int] | None = [] if settings.trace else None
        seed, worker = _seed_and_worker()
        try:
            path = name_of(settings.folder, seed, worker)
            self._page = BatchFile(path)
            if settings.trace:
                self._detail = os.open(f"{path}.samples", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            self._page = None  # e.g. the disk is full: record nothing

    def begin(self) -> None:
        """Start a batch."""
        self.longest = self.collated = self.samples = 0
        self.slowest = ""
        if self.stamps:
            self.stamps.clear()

    def done(self, begun: int, done: int) -> None:
        """Record the finished batch."""
        if self._page is not None:
            collated = self.collated or done
            self._page.batch(begun, collated, done, self.samples, self.longest, self.slowest)
            if self._detail >= 0 and self.stamps:
                self._write(begun, done)

    def _write(self, begun: int, done: int) -> None:
        import array  # noqa: PLC0415 - only for a trace

        stamps = self.stamps or []
        data = array.array("q", [len(stamps) + 2, begun, *stamps, done]).tobytes()
        stamps.clear()
        if len(data) <= self._left:
            self._left -= len(data)
            try:
                os.write(self._detail, data)
            except OSError:
                self._left = 0


def _seed_and_worker() -> tuple[int, int]:
    """Return torch's base seed and the worker number; in the main process our own seed and -1."""
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - torch is imported by now

    info = get_worker_info()
    return (info.seed - info.id, info.id) if info is not None else (-_inline[0], -1)


class _Samples:
    """Wraps a dataset and times each sample."""

    def __init__(self, dataset: Any, clock: FetchClock) -> None:
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
    """Wraps the iterator of a dataset and times each sample."""

    def __init__(self, inner: Iterator[Any], clock: FetchClock) -> None:
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


def _timed(collate: Any, clock: FetchClock) -> Any:
    def timed(data: Any) -> Any:
        clock.collated = _now()
        return collate(data)

    return functools.update_wrapper(timed, collate) if hasattr(collate, "__dict__") else timed


def _choose_timing(fetcher: Any, clock: FetchClock, took: int) -> None:
    """Time single samples only if they are so slow that reading the clock costs nothing."""
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
    """Patch torch's two fetchers."""
    if not settings.folder:
        return
    _patch(module._MapDatasetFetcher, settings, stream=False)  # noqa: SLF001 - torch's names
    _patch(module._IterableDatasetFetcher, settings, stream=True)  # noqa: SLF001 - as above


def _patch(kind: Any, settings: Settings, *, stream: bool) -> None:
    make, fetch = kind.__init__, kind.fetch

    @functools.wraps(make)
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        make(this, *args, **kwargs)
        this.unjam_clock = clock = FetchClock(settings)
        this.collate_fn = _timed(this.collate_fn, clock)
        if stream:
            this.dataset_iter = _Stream(this.dataset_iter, clock)
        elif not getattr(this.dataset, "__getitems__", None):
            this.dataset = _Samples(this.dataset, clock)

    @functools.wraps(fetch)
    def fetched(this: Any, possibly_batched_index: Any) -> Any:
        clock, begun = getattr(this, "unjam_clock", None), _now()
        if clock is None:
            return fetch(this, possibly_batched_index)  # created before we patched the class
        clock.begin()  # reset: the previous batch may have raised
        data = fetch(this, possibly_batched_index)
        now = _now()
        if not clock.samples:
            clock.samples = len(possibly_batched_index) if isinstance(possibly_batched_index, list) else 1
        if not stream and clock.stamps is None:
            _choose_timing(this, clock, now - begun)
        clock.done(begun, now)
        return data

    PATCHES.set(kind, "__init__", made)
    PATCHES.set(kind, "fetch", fetched)
