"""Measures what `engine.size_search` needs: delivery rate, idle time, use of processors and memory.

One sizer lives as long as its loader, through all epochs. A window never spans two epochs.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
import weakref
from array import array
from dataclasses import dataclass, field, replace
from typing import Any

from unjam.loader.driver.times import TAIL
from unjam.loader.engine.size_search import WORTH, Limits, Setting, SizeSearch, Window
from unjam.loader.pool.batch_result import BatchReport
from unjam.loader.pool.protocol import Pool
from unjam.loader.ship.worker_info_use import asks_for_its_worker
from unjam.loader.transport.status_page import Stage
from unjam.statistics import Auto, AutoStep
from unjam.system import limits
from unjam.system.memory_limits import available_memory
from unjam.units import count

# A window ends when the standard error of its mean is below MAX_ERROR: not before MIN_WINDOW and not
# after MAX_WINDOW, each as (batches, seconds).
MIN_WINDOW, MAX_WINDOW = (8, 0.4), (120, 5.0)
MAX_ERROR = 0.05
# batch times are uneven if they vary by more than this part of their mean
UNEVEN = 0.7
MAX_DEPTH = 16
# Workers may take this part of the available memory. We measure the memory of one worker; until then
# we assume ASSUMED_MEMORY.
MEMORY_SHARE, ASSUMED_MEMORY = 0.5, 200 << 20
DESCRIPTORS_PER_WORKER = 12
MAX_FIRST_SIZE = 8
_NOT_READY = (Stage.STARTING, Stage.LOADING, Stage.INIT)


@dataclass(slots=True)
class _CurrentWindow:
    """Measurements of the current window; nanoseconds. `skip`: batches to ignore, made with the last setting."""

    size: int
    skip: int
    began: int = 0
    last: int = 0
    count: int = 0
    samples: int = 0
    waited: int = 0
    busy: int = 0
    computed: float = 0.0
    stamps: list[bytes] = field(default_factory=list)
    makings: list[int] = field(default_factory=list)
    # time of each group of `size` batches: one round of all workers
    chunk: int = 0
    chunks: list[int] = field(default_factory=list)


class AutoSizer:
    """Chooses the number of workers and how far they run ahead.

    `resizes_within_epoch`: the number of workers may change within an epoch. `depth`: the user's `prefetch_factor`,
    which never changes. `single`: use at most one worker, because an iterable that does not ask which
    worker it is in yields every sample once per worker.
    """

    def __init__(self, *, resizes_within_epoch: bool, start: int, depth: int | None, single: bool = False) -> None:
        self._copy = functools.partial(
            AutoSizer, resizes_within_epoch=resizes_within_epoch, start=start, depth=depth, single=single
        )
        self._resizes_within_epoch = resizes_within_epoch
        self._single = single
        bounds = _limits()
        if single:
            bounds = replace(bounds, workers=1, because="an iterable that never calls get_worker_info()")
        start = min(start, bounds.workers)
        self.search = SizeSearch(Setting(start, depth or 2), bounds, adapts_depth=depth is None)
        self.wanted: Setting | None = None
        # weak: the pool must be freed together with its iterator
        self._pool_ref: weakref.ref[Any] | None = None
        self._measured_memory = False
        self._window = _CurrentWindow(start, start + 2)

    def __reduce__(self) -> Any:
        # a copy of a loader measures again
        return self._copy, ()

    @property
    def setting(self) -> Setting:
        """The number of workers and the depth to use from now on."""
        return self.search.setting

    @property
    def _pool(self) -> Pool | None:
        return None if self._pool_ref is None else self._pool_ref()

    @property
    def limits(self) -> Limits:
        """The largest setting possible."""
        return self.search.limits

    def begin(self, pool: Pool) -> None:
        """Start an epoch."""
        self._pool_ref = weakref.ref(pool)
        self.wanted = None
        self._window = _CurrentWindow(self.setting.workers, self.setting.workers + 2)

    def end(self) -> None:
        """End an epoch. If sizes change only between epochs, the epoch was one window."""
        if not self._resizes_within_epoch and self._window.count >= MIN_WINDOW[0]:
            self._end_window()

    def delivered(self, facts: BatchReport, waited: int, now: int) -> None:
        """Record a delivered batch and how long the consumer waited for it; nanoseconds."""
        window = self._window
        if window.skip > 0:
            window.skip -= 1
            if window.skip == 0 and not self._all_ready():
                window.skip = 1
            elif window.skip == 0:
                window.began = window.last = now
                window.computed = self._processor_seconds()
            return
        window.count += 1
        window.samples += facts.samples
        window.waited += waited
        window.chunk += now - window.last
        window.last = now
        if window.count % window.size == 0:
            window.chunks.append(window.chunk)
            window.chunk = 0
        stamps = facts.times
        if len(stamps) >= 16:
            making = int.from_bytes(stamps[-8:], sys.byteorder) - int.from_bytes(stamps[:8], sys.byteorder)
            window.busy += making
            if len(window.makings) < MAX_WINDOW[0]:
                window.makings.append(making)
                window.stamps.append(stamps)
        if self._resizes_within_epoch and _is_over(window, (now - window.began) / 1e9, self.search.base_rate):
            self._end_window()

    # -- internals ---------------------------------------------------------------------------------

    def _end_window(self) -> None:
        window = self._window
        seconds = (window.last - window.began) / 1e9
        if seconds <= 0:
            return
        measured = Window(
            seconds,
            window.count,
            window.samples,
            window.waited / 1e9 / seconds,
            min(1.0, window.busy / 1e9 / (seconds * window.size)),
            (self._processor_seconds() - window.computed) / seconds,
            _median_seconds(window.stamps),
            _is_uneven(window.makings),
        )
        before = self.search.setting
        self._limit_by_memory()
        after = self.search.judge(measured)
        if after == before or not self._resizes_within_epoch:
            self._window = _CurrentWindow(window.size, 1)
            return
        self.wanted = after
        # skip the batches that were started under the old setting
        self._window = _CurrentWindow(after.workers, max(before.workers, after.workers) + 2)

    def _all_ready(self) -> bool:
        pool = self._pool
        if pool is None:
            return True
        heartbeats = [pool.heartbeat(number) for number in range(self._window.size)]
        return all(heartbeat is None or heartbeat.stage not in _NOT_READY for heartbeat in heartbeats)

    def _processor_seconds(self) -> float:
        """Return the CPU seconds of the current workers."""
        pool, total = self._pool, 0.0
        if pool is None:
            return math.nan
        for number in range(self._window.size):
            pid = pool.pid(number)
            if pid is not None and pool.is_here(number):
                total += limits.processor_seconds(pid)
        return total

    def use_cluster(self, room: int) -> None:
        """Set the limits for workers on a cluster with `room` processors."""
        words = f"the size of the cluster (processors: {room})"
        workers = min(room, 1) if self._single else room
        self.search.limits = replace(self.limits, workers=workers, processors=room, because=words)

    def _limit_by_memory(self) -> None:
        """Limit the number of workers by the memory that one worker uses, measured once."""
        pool = self._pool
        pid = pool.pid(0) if pool is not None and pool.is_here(0) else None
        left = available_memory()
        size = limits.pss_bytes(pid) if pid is not None and not self._measured_memory else 0
        if not size or left is None:
            return
        self._measured_memory = True
        room = self._window.size + int(left * MEMORY_SHARE / limits.local_ranks() // size)
        if room < self.limits.workers:
            self.search.limits = replace(self.limits, workers=max(1, room), because="memory")

    def report(self) -> Auto:
        """Return the report for `statistics()`."""
        search = self.search
        return Auto(
            search.setting.workers,
            search.setting.depth,
            search.limits.workers,
            search.settled,
            search.why,
            tuple(
                AutoStep(s.batches, s.setting.workers, s.setting.depth, s.rate, s.waited, s.verdict)
                for s in search.steps
            ),
        )


def _is_over(window: _CurrentWindow, seconds: float, base: float) -> bool:
    """Return whether the window is conclusive: a stable mean, or a clear difference from the base rate."""
    if window.count >= MAX_WINDOW[0] and seconds >= MIN_WINDOW[1]:
        return True
    if seconds >= MAX_WINDOW[1] and window.count >= 4:
        return True
    if window.count < MIN_WINDOW[0] or seconds < MIN_WINDOW[1] or len(window.chunks) < 4 or window.chunk:
        return False
    mean = sum(window.chunks) / len(window.chunks)
    error = statistics.stdev(window.chunks) / math.sqrt(len(window.chunks)) / mean if mean else 1.0
    if _is_uneven(window.makings):
        return False
    gain = window.samples / seconds / base if base else WORTH
    return error < MAX_ERROR or abs(gain / WORTH - 1) > 4 * error


def _is_uneven(makings: list[int]) -> bool:
    """Return whether a few batches take most of the time."""
    return len(makings) >= 4 and statistics.stdev(makings) > UNEVEN * statistics.fmean(makings)


def _median_seconds(stamps: list[bytes]) -> float:
    """Return the median time of a sample in seconds; of a batch if the dataset loads whole batches."""
    took: list[int] = []
    for one in stamps:
        words = array("q")
        words.frombytes(one)
        last = max(1, len(words) - TAIL)
        took += [words[at + 1] - words[at] for at in range(last)]
    return statistics.median(took) / 1e9 if took else math.nan


def _limits() -> Limits:
    most, because = most_workers(available_memory())
    return Limits(most, MAX_DEPTH, limits.own_processors(), because)


def most_workers(left: int | None) -> tuple[int, str]:
    """Return how many workers the machine allows with `left` bytes of memory, and which limit decides."""
    # allow more workers than processors: workers that wait for a disk or network do not use one
    processors = limits.own_processors()
    known = {f"unjam's limit for {count(processors, 'processor')}": max(16, min(64, processors * 4))}
    if left is not None:
        known["memory"] = int(left * MEMORY_SHARE / limits.local_ranks() // ASSUMED_MEMORY)
    most, used = limits.descriptors()
    known["the limit on open files"] = (most - used - 64) // DESCRIPTORS_PER_WORKER
    because = min(known, key=lambda name: known[name])
    return max(1, known[because]), because


def first_size(dataset: Any, *, iterable: bool) -> int:
    """Return the number of workers to start with."""
    if iterable and not asks_for_its_worker(dataset):
        return 1
    return max(1, min(MAX_FIRST_SIZE, limits.own_processors(), _limits().workers))
