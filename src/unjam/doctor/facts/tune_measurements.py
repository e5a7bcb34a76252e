"""Measurements of loader settings that were tried one after another."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unjam.units import count


@dataclass(frozen=True, slots=True)
class TuneSetting:
    """One setting of a loader.

    driver: "torch" or "unjam", the loader class. start: start method, "" for the default.
    threads: compute threads of each unjam worker; 0: no limit.
    """

    driver: str
    workers: int
    start: str = ""
    prefetch: int = 2
    threads: int = 1

    def __str__(self) -> str:
        words = [self.driver, count(self.workers, "worker") if self.workers else "no workers"]
        if self.workers:
            if self.start:
                words.append(self.start)
            if self.prefetch != 2:
                words.append(f"prefetch {self.prefetch}")
            if self.threads != 1 and self.driver == "unjam":
                words.append(f"{self.threads} threads each" if self.threads else "threads not limited")
        return ", ".join(words)

    @property
    def is_plain(self) -> bool:
        """Whether only the loader and the number of workers differ from the defaults."""
        return self.prefetch == 2 and self.threads == 1 and not self.start

    def changed(self, **changes: Any) -> TuneSetting:
        """Return a copy of the setting with these changes."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of one setting. Times are in seconds, rates in samples per second.

    outcome: "fine", "raised", "hung", "died", "memory" or "refused"; `note` says more.
    counted: samples and seconds, without the batches that were prefetched before the first one.
    rates: of the parts of the measurement, to show how much they differ.
    first: from iter() to the first batch. turn: from the end of an epoch to the next first batch.
    workers_cpu, main_cpu: processors in use. memory: total PSS of the main process and its workers.
    stages: seconds of a worker per sample, by stage.
    waits: how often working workers were found waiting, by kind of wait.
    """

    setting: TuneSetting
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
    busy: float = 0.0
    stalled: float = 0.0
    failed: int = 0
    stages: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, int] = field(default_factory=dict)
    slowest: tuple[tuple[str, float], ...] = ()
    profile: Mapping[str, Any] | None = None
    timeline: tuple[tuple[int, float, float, float, int, str, float, str], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # sample -> its file, for the slowest samples

    @property
    def fine(self) -> bool:
        """Whether the measurement succeeded."""
        return self.outcome == "fine"

    @property
    def rate(self) -> float:
        """Samples per second: the median of the parts if there are enough of them."""
        if len(self.rates) >= 3:
            return statistics.median(self.rates)
        return self.counted[0] / self.counted[1] if self.counted[1] > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TuneResult:
    """All measurements of a loader; a setting may have several."""

    measurements: tuple[Measurement, ...]
    batch_size: float  # mean number of samples in a batch
    processors: int
    most: int  # limit of the number of workers on this machine; because: what limits it
    because: str
    as_is: TuneSetting
    dataset: str = ""
    made_at: str = ""
    epochs: int | None = None
    epoch_samples: int | None = None
    persistent: bool = False
    step: float | None = None  # seconds of a training step, if known
    step_from: str = ""
    stopped: bool = False
    cut: bool = False  # the budget ended before all numbers of workers were tried
    seconds: float = 0.0

    def settings(self) -> list[TuneSetting]:
        """Return each setting once, in the order in which they were first tried."""
        return list(dict.fromkeys(one.setting for one in self.measurements))

    def of(self, setting: TuneSetting) -> list[Measurement]:
        """Return all measurements of a setting."""
        return [one for one in self.measurements if one.setting == setting]

    def rate(self, setting: TuneSetting) -> float:
        """Return the median rate of a setting; 0 if one of its measurements failed."""
        found = self.of(setting)
        if not found or not all(one.fine for one in found):
            return 0.0
        return statistics.median([one.rate for one in found if one.rate] or [0.0])

    def good_rates(self) -> dict[TuneSetting, float]:
        """Return the rate of each setting that succeeded."""
        return {setting: rate for setting in self.settings() if (rate := self.rate(setting)) > 0}

    def spread(self, setting: TuneSetting) -> tuple[float, float]:
        """Return the lowest and highest rate of its measurements; if only one, of its parts."""
        found = [one for one in self.of(setting) if one.rate]
        rates = [one.rate for one in found] if len(found) > 1 else [rate for one in found for rate in one.rates]
        return (min(rates), max(rates)) if rates else (0.0, 0.0)

    def last(self, setting: TuneSetting) -> Measurement:
        """Return the longest measurement of a setting, a successful one if there is one."""
        return max(self.of(setting), key=lambda one: (one.fine, one.seconds))
