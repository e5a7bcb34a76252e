"""Times of every sample and batch, kept as they come and counted a thousand batches at a time.

The hot path appends one pair to a list. Counting is done over many batches at once, so that it costs a fraction of a
microsecond for each sample.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

import torch

from unjam.errors import short
from unjam.statistics import StageTimes

# of a histogram whose steps are 2**(1/16): a percentile is right to 5 %
PER_OCTAVE = 16
BUCKETS = 64 * PER_OCTAVE
COUNT_EVERY = 1024
# stamps at the end of a batch: collating begins, packing begins, done
TAIL = 3
STAGES = ("getitem", "collate", "pickle")


@dataclass(slots=True)
class Histogram:
    """Durations in nanoseconds."""

    counts: torch.Tensor = field(default_factory=lambda: torch.zeros(BUCKETS, dtype=torch.int64))
    total: int = 0
    longest: int = 0
    slowest: str = ""

    def add(self, durations: torch.Tensor) -> int | None:
        """Count; return where the longest so far is, if it is among these."""
        if not durations.numel():
            return None
        buckets = (durations.clamp(min=1).double().log2() * PER_OCTAVE).long().clamp(max=BUCKETS - 1)
        self.counts += torch.bincount(buckets, minlength=BUCKETS)
        self.total += int(durations.sum())
        at = int(durations.argmax())
        if int(durations[at]) > self.longest:
            self.longest = int(durations[at])
            return at
        return None

    def summary(self) -> StageTimes:
        """As a user reads it."""
        count = int(self.counts.sum())
        if not count:
            return StageTimes()
        return StageTimes(
            count, self.total / 1e9, self._percentile(0.5), self._percentile(0.95), self.longest / 1e9, self.slowest
        )

    def _percentile(self, part: float) -> float:
        reached = self.counts.cumsum(0)
        bucket = int(torch.searchsorted(reached, math.ceil(part * int(reached[-1]))))
        return min(2 ** ((bucket + 0.5) / PER_OCTAVE), self.longest) / 1e9


class Times:
    """What the batches' stamps say."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Any, bytes]] = []
        self._waits = array("q")
        self._stages = {stage: Histogram() for stage in STAGES}
        self._waited = Histogram()

    def batch(self, number: int, index: Any, stamps: bytes) -> None:
        """A batch was delivered; `number` in its epoch, its indices, and its stamps as bytes."""
        self._pending.append((number, index, stamps))
        if len(self._pending) >= COUNT_EVERY:
            self._count()

    def wait(self, nanoseconds: int) -> None:
        """The consumer waited."""
        self._waits.append(nanoseconds)

    def stages(self) -> dict[str, StageTimes]:
        """Per stage."""
        self._count()
        return {stage: histogram.summary() for stage, histogram in self._stages.items()}

    def waited(self) -> StageTimes:
        """The consumer's waiting."""
        self._count()
        return self._waited.summary()

    def _count(self) -> None:
        waits, self._waits = self._waits, array("q")
        if waits:
            self._waited.add(torch.frombuffer(bytearray(waits.tobytes()), dtype=torch.int64))
        pending, self._pending = [entry for entry in self._pending if len(entry[2]) > TAIL * 8], []
        if not pending:
            return
        joined = bytearray(b"".join(stamps for _, _, stamps in pending))
        stamps = torch.frombuffer(joined, dtype=torch.int64)
        took = stamps[1:] - stamps[:-1]
        ends = torch.tensor([len(stamps) // 8 for _, _, stamps in pending]).cumsum(0)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
        samples = torch.ones(len(took), dtype=torch.bool)
        for back in range(1, TAIL + 1):
            within = ends - back
            samples[within[within < len(took)]] = False
        places = samples.nonzero().squeeze(1)
        at = self._stages["getitem"].add(took[places])
        if at is not None:
            spot = places[at]
            which = int(torch.searchsorted(ends, spot, right=True))
            self._stages["getitem"].slowest = _sample(pending[which], int(spot - starts[which]))
        for back, stage in ((3, "collate"), (2, "pickle")):
            at = self._stages[stage].add(took[ends - back])
            if at is not None:
                self._stages[stage].slowest = f"batch {pending[at][0]}"


def _sample(entry: tuple[int, Any, bytes], position: int) -> str:
    number, indices, stamps = entry
    # a dataset that gives all samples at once has one time for the batch
    alone = len(stamps) // 8 - TAIL == len(indices)
    return (
        f"sample {short(indices[position])} (batch {number})"
        if alone and indices[position] is not None
        else f"batch {number}"
    )
