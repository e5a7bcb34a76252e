"""Times of every sample and batch, analysed a thousand batches at a time.

The hot path only appends to a list. Analysing many batches at once costs a fraction of a
microsecond per sample. We use numpy because torch's operations depend on the consumer's mode
(inference, default device, fake tensors) and show up in its profiles.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unjam.errors import short
from unjam.statistics import SlowSample, StageTimes, Stalls

# Histogram buckets grow by a factor of 2**(1/16), so a percentile is right to 5 %.
PER_OCTAVE = 16
BUCKETS = 64 * PER_OCTAVE
COUNT_EVERY = 1024
# analyse earlier if batches are large: pending stamps take memory
COUNT_BYTES = 1 << 19
# the last stamps of a batch: collate begins, pickling begins, done
TAIL = 3
MAX_SLOW = 20
# A sample is slow if it takes this many times the median, and at least this many nanoseconds.
SLOW_TIMES, SLOW_LEAST = 10, 2_000_000
STAGES = ("getitem", "collate", "pickle")

IntArray = NDArray[np.int64]


@dataclass(slots=True)
class Histogram:
    """A histogram of durations in nanoseconds."""

    counts: IntArray = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    total: int = 0
    longest: int = 0
    slowest: str = ""

    def add(self, durations: IntArray) -> int | None:
        """Add durations; return the position of the longest if it is the longest so far."""
        if not durations.size:
            return None
        buckets = np.minimum((np.log2(np.maximum(durations, 1)) * PER_OCTAVE).astype(np.int64), BUCKETS - 1)
        self.counts += np.bincount(buckets, minlength=BUCKETS)
        self.total += int(durations.sum())
        at = int(durations.argmax())
        if int(durations[at]) > self.longest:
            self.longest = int(durations[at])
            return at
        return None

    def summary(self) -> StageTimes:
        """Return the summary that the user sees."""
        count = int(self.counts.sum())
        if not count:
            return StageTimes()
        octaves = self.counts.reshape(-1, PER_OCTAVE).sum(1)
        spread = tuple((2.0 ** (at + 1) / 1e9, int(octaves[at])) for at in octaves.nonzero()[0].tolist())
        return StageTimes(
            count,
            self.total / 1e9,
            self.percentile(0.5),
            self.percentile(0.95),
            self.percentile(0.99),
            self.longest / 1e9,
            self.slowest,
            spread,
        )

    def percentile(self, part: float) -> float:
        """Return a percentile in seconds (`part` from 0 to 1); 0 if nothing was counted."""
        reached = self.counts.cumsum()
        if not int(reached[-1]):
            return 0.0
        bucket = int(np.searchsorted(reached, math.ceil(part * int(reached[-1]))))
        return min(2 ** ((bucket + 0.5) / PER_OCTAVE), self.longest) / 1e9


class Times:
    """Statistics from the batches' stamps."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Any, bytes, int]] = []
        self._waiting = 0
        self._counting = threading.RLock()  # a signal handler may ask while this thread counts
        self._stages = {stage: Histogram() for stage in STAGES}
        self._waited = Histogram()
        self._slow: list[tuple[int, str, int]] = []
        self._stalls = Stalls()

    def add(self, number: int, index: Any, stamps: bytes, waited: int) -> None:
        """Record a delivered batch.

        `number`: its number in the epoch. `waited`: how long the consumer waited for it.
        """
        self._pending.append((number, index, stamps, waited))
        self._waiting += len(stamps)
        if len(self._pending) >= COUNT_EVERY or self._waiting >= COUNT_BYTES:
            self._count()

    def stages(self) -> dict[str, StageTimes]:
        """The times per stage."""
        self._count()
        return {stage: histogram.summary() for stage, histogram in self._stages.items()}

    def waited(self) -> StageTimes:
        """How long the consumer waited for batches."""
        self._count()
        return self._waited.summary()

    def slowest(self) -> tuple[SlowSample, ...]:
        """The slowest samples, slowest first."""
        self._count()
        return tuple(SlowSample(name, took / 1e9, number) for took, name, number in self._slow)

    @property
    def stalls(self) -> Stalls:
        """How long the consumer waited because of slow samples."""
        self._count()
        return self._stalls

    def _count(self) -> None:
        with self._counting:  # another thread may ask for the statistics
            entries, self._pending, self._waiting = self._pending, [], 0
            self._waited.add(np.array([entry[3] for entry in entries], np.int64))
            self._count_stages([entry for entry in entries if len(entry[2]) > TAIL * 8])

    def _count_stages(self, pending: list[tuple[int, Any, bytes, int]]) -> None:
        if not pending:
            return
        waits = np.array([entry[3] for entry in pending], np.int64)
        stamps = np.frombuffer(b"".join(entry[2] for entry in pending), np.int64)
        took = np.diff(stamps)
        lengths = np.array([len(entry[2]) // 8 for entry in pending], np.int64)
        ends = lengths.cumsum()
        starts = ends - lengths
        samples = np.ones(len(took), bool)
        for back in range(1, TAIL + 1):
            within = ends - back
            samples[within[within < len(took)]] = False
        places = samples.nonzero()[0]
        durations = took[places]
        owners = np.searchsorted(ends, places, side="right")
        self._stages["getitem"].add(durations)
        self._keep_slowest(durations, places - starts[owners], owners, pending)
        self._attribute(durations, owners, waits)
        for back, stage in ((3, "collate"), (2, "pickle")):
            at = self._stages[stage].add(took[ends - back])
            if at is not None:
                self._stages[stage].slowest = f"batch {pending[at][0]}"

    def _keep_slowest(self, durations: IntArray, positions: IntArray, owners: IntArray, pending: Any) -> None:
        """Keep the slowest samples, by name."""
        least = self._slow[-1][0] if len(self._slow) == MAX_SLOW else 0
        most = min(MAX_SLOW, len(durations))
        at = np.argpartition(-durations, most - 1)[:most]
        at = at[np.argsort(-durations[at], kind="stable")]
        for value, place in zip(durations[at].tolist(), at.tolist(), strict=True):
            if value <= least:
                break
            entry = pending[int(owners[place])]
            self._slow.append((value, _sample(entry, int(positions[place])), entry[0]))
        self._slow = sorted(self._slow, key=lambda one: -one[0])[:MAX_SLOW]
        if self._slow:
            first = self._slow[0]
            one_sample = not first[1].startswith("batch ")
            self._stages["getitem"].slowest = f"sample {first[1]} (batch {first[2]})" if one_sample else first[1]

    def _attribute(self, durations: IntArray, owners: IntArray, waits: IntArray) -> None:
        """Count the wait for a batch with a slow sample as a stall, up to the excess time."""
        median = int(self._stages["getitem"].percentile(0.5) * 1e9)
        slow = max(median * SLOW_TIMES, SLOW_LEAST)
        longest = np.zeros(len(waits), np.int64)
        np.maximum.at(longest, owners, durations)
        stalled = np.minimum(waits, longest - median)[longest > slow]
        stalled = stalled[stalled > 0]
        self._stalls = Stalls(
            self._stalls.batches + len(stalled), self._stalls.seconds + int(stalled.sum()) / 1e9, slow / 1e9
        )


def _sample(entry: tuple[int, Any, bytes, int], position: int) -> str:
    number, indices, stamps, _ = entry
    # With `__getitems__` there is only one time for the whole batch.
    one_sample = len(stamps) // 8 - TAIL == len(indices)
    return short(indices[position]) if one_sample and indices[position] is not None else f"batch {number}"
