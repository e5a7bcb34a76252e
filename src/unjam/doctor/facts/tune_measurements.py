"""What a loader's settings showed when they were tried one after another."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Rung:
    """One setting. `driver`: whose loader, "torch" or "unjam". `start`: a start method, "" for the driver's own choice.

    threads: compute threads of each of unjam's workers; 0 leaves them alone.
    """

    driver: str
    workers: int
    start: str = ""
    prefetch: int = 2
    threads: int = 1

    def __str__(self) -> str:
        words = [self.driver, "no workers" if not self.workers else f"{self.workers} workers"]
        words[1] = words[1].replace("1 workers", "1 worker") if self.workers == 1 else words[1]
        if self.workers:
            if self.start:
                words.append(self.start)
            if self.prefetch != 2:
                words.append(f"prefetch {self.prefetch}")
            if self.threads != 1 and self.driver == "unjam":
                words.append(f"{self.threads} threads each" if self.threads else "threads left alone")
        return ", ".join(words)

    def changed(self, **changes: Any) -> Rung:
        """The same with something changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one setting showed, once. Times in seconds, rates in samples a second.

    outcome: "fine", "raised", "hung", "died", "memory" or "refused"; `note` says more. counted: samples and seconds after what
    was made ahead of the first batch. rates: of the parts of the stretch, to see how they differ. first: from iter() to the first batch; turn: from the last batch of an epoch to the first of the
    next. workers_cpu, main_cpu: processors in use. memory: summed PSS of the main process and its workers. stages: seconds of
    a worker for a sample, by stage. waits: what looks at the workers found them waiting for, by kind.
    """

    rung: Rung
    outcome: str
    note: str = ""
    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    counted: tuple[int, float] = (0, 0.0)
    rates: tuple[float, ...] = ()
    first: float = 0.0
    turn: float | None = None
    workers_cpu: float = 0.0
    main_cpu: float = 0.0
    memory: int = 0
    batch_bytes: int = 0
    busy: float = 0.0
    stalled: float = 0.0
    failed: int = 0
    stages: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, int] = field(default_factory=dict)
    slowest: tuple[tuple[str, float], ...] = ()
    profile: Mapping[str, Any] | None = None
    timeline: tuple[tuple[int, float, float, float, int, str, float, str], ...] = ()

    @property
    def fine(self) -> bool:
        """Whether it ran, and nothing failed."""
        return self.outcome == "fine"

    @property
    def rate(self) -> float:
        """Samples a second: the median of the parts, where there are some."""
        if len(self.rates) >= 3:
            return statistics.median(self.rates)
        return self.counted[0] / self.counted[1] if self.counted[1] > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Climb:
    """Every setting that was tried, some of them more than once."""

    measured: tuple[Measured, ...]
    batch_size: float  # samples in a batch, as they came
    processors: int
    most: int  # workers
    because: str
    as_is: Rung
    dataset: str = ""
    made_at: str = ""
    epochs: int | None = None
    epoch_samples: int | None = None
    persistent: bool = False
    step: float | None = None  # seconds of a training step, if anybody knows
    step_from: str = ""
    stopped: bool = False
    cut: bool = False  # the budget was used up before the ladder was
    seconds: float = 0.0

    def rungs(self) -> list[Rung]:
        """Each setting once, in the order of their first trial."""
        return list(dict.fromkeys(one.rung for one in self.measured))

    def of(self, rung: Rung) -> list[Measured]:
        """All trials of a setting."""
        return [one for one in self.measured if one.rung == rung]

    def rate(self, rung: Rung) -> float:
        """The median of its trials; 0 where one of them failed."""
        found = self.of(rung)
        if not found or not all(one.fine for one in found):
            return 0.0
        return statistics.median([one.rate for one in found if one.rate] or [0.0])

    def spread(self, rung: Rung) -> tuple[float, float]:
        """The slowest and the fastest trial, or part of the only one."""
        found = [one for one in self.of(rung) if one.rate]
        rates = [one.rate for one in found] if len(found) > 1 else [rate for one in found for rate in one.rates]
        return (min(rates), max(rates)) if rates else (0.0, 0.0)

    def last(self, rung: Rung) -> Measured:
        """Its longest trial."""
        return max(self.of(rung), key=lambda one: (one.fine, one.seconds))
