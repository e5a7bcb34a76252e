"""Decides how many workers to use and how far they run ahead.

NOTE [ Size search ]

A window is a series of batches under one setting. It shows one of these:

    the consumer hardly waits                 fast enough; try fewer workers if they are idle
    it waits, and the workers are idle        batches wait behind a slow one: run further ahead
    it waits, and the workers are busy        try more workers; undo that if it gains nothing

Every change is an experiment: we compare the window before it with the window after it. We keep a
change that costs resources only if the rate rose by `WORTH`, and a change that saves resources unless
the rate fell below `KEEP`. The gap between the two keeps noise from moving the setting back and forth.
When nothing is left to try, the search is settled. It starts again when the measurements have clearly
changed and, while the consumer still waits, after pauses that double each time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from unjam.units import all_in_use, count

# loading is fast enough if the consumer waits for a smaller part of its time than this
ENOUGH = 0.04
# once fast enough, it is too slow again if the consumer waits for more than this
TOO_MUCH = 0.15
# the rate must rise by this factor if a change costs resources; may fall to this one if it saves them
WORTH, KEEP = 1.06, 0.97
# workers count as idle if they are busy for a smaller part of their time than this
IDLE = 0.8
# how many windows in a row must agree before a settled search starts again
IN_A_ROW = 3
# the rate has changed if it fell below this part of the rate when the search settled
CHANGED = 0.7
# Seconds after which a settled search starts again if the consumer waits; doubled each time.
RETRY_AFTER = 60.0
MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class Setting:
    """The number of workers, and how many batches may be in flight for each."""

    workers: int
    depth: int


@dataclass(frozen=True, slots=True)
class Window:
    """Measurements of one window.

    waited: part of the time in which the consumer waited. busy: part of the workers' time in which they
    made batches. processors_used: processors that the workers used together; NaN if unknown. median_sample: median time
    of a sample. uneven: a few batches take most of the time.
    """

    seconds: float
    batches: int
    samples: int
    waited: float
    busy: float
    processors_used: float = math.nan
    median_sample: float = math.nan
    uneven: bool = False

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def gain(self, before: Window, workers: int, workers_before: int) -> float:
        """Return how many times as fast this window is as `before`.

        If a few slow samples take most of the time, the rate depends mainly on how many of them a
        window happened to contain. Then we compare the work done: the workers' busy time divided by
        the median sample time, under each setting.
        """
        if (self.uneven or before.uneven) and self.median_sample > 0 and before.median_sample > 0:
            done, done_before = (
                self.busy * workers / self.median_sample,
                before.busy * workers_before / before.median_sample,
            )
            return done / done_before if done_before else 1.0
        return self.rate / before.rate if before.rate else 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine allows. `because`: in words, what limits the number of workers."""

    workers: int
    depth: int
    processors: int
    because: str = "the limit"


@dataclass(frozen=True, slots=True)
class Step:
    """One experiment, for the report."""

    batches: int
    setting: Setting
    rate: float
    waited: float
    verdict: str


@dataclass(slots=True)
class SizeSearch:
    """The search, see NOTE [ Size search ]. `setting` is the one to use; `judge` changes it."""

    setting: Setting
    limits: Limits
    adapts_depth: bool = True
    settled: bool = False
    why: str = "no measurements yet"
    batches: int = 0
    # during an experiment: the rate to compare with; otherwise 0
    base_rate: float = 0.0
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    _trying: str = ""
    _base: tuple[Setting, Window] | None = None
    _rejected: set[str] = field(default_factory=set)
    _gains: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    _settled_as: Window | None = None
    _changed_in_a_row: int = 0
    _idle_in_a_row: int = 0
    _since: float = 0.0
    _pause: float = RETRY_AFTER

    def judge(self, window: Window) -> Setting:
        """Evaluate a window of the current setting; return the setting to use from now on."""
        self.batches += window.batches
        if self.settled:
            self._check_settled(window)
        else:
            self._experiment(window)
        return self.setting

    # -- experiments -------------------------------------------------------------------------------

    def _experiment(self, window: Window) -> None:
        base, tried = self._base, self._trying
        verdict = "first"
        if base is None or not tried:
            self._base = (self.setting, window)
        elif self._passed(tried, window, *base):
            verdict = "kept"
            self._base = (self.setting, window)
            self._rejected |= {"more": {"fewer"}, "fewer": {"more"}}.get(tried, set())
        else:
            verdict = "undone"
            self._rejected.add(tried)
            gain = window.gain(base[1], self.setting.workers, base[0].workers)
            slower = window.median_sample / base[1].median_sample if base[1].median_sample else 1.0
            self._gains[tried] = (self.setting.workers, gain, slower)
        self.steps.append(Step(self.batches, self.setting, window.rate, window.waited, verdict))
        if verdict == "undone" and base is not None:
            self.setting, window = base
        self._next(window)

    def _passed(self, tried: str, now: Window, was: Setting, before: Window) -> bool:
        gain = now.gain(before, self.setting.workers, was.workers)
        if tried in ("more", "deeper"):
            return now.waited <= ENOUGH < before.waited or gain >= WORTH
        if before.waited <= ENOUGH:
            return now.waited <= ENOUGH  # the consumer limits the rate, not the workers
        return gain >= KEEP

    def _next(self, window: Window) -> None:
        """Choose what to try next, from the best setting so far and its window."""
        workers, depth = self.setting.workers, self.setting.depth
        for direction in self._worth_trying(window):
            if direction in self._rejected:
                continue
            if direction == "fewer" and window.waited <= ENOUGH:
                size = max(1, min(workers - 1, math.ceil(window.busy * workers * 1.25)))
                wanted = Setting(size, depth)
            else:
                wanted = {
                    "more": Setting(min(workers * 2, self.limits.workers), depth),
                    "fewer": Setting(max(1, workers // 2), depth),
                    "deeper": Setting(workers, min(depth * 2, self.limits.depth)),
                }[direction]
            if wanted != self.setting:
                self._trying, self.setting = direction, wanted
                self.why = f"trying {count(wanted.workers, 'worker')} with prefetch {wanted.depth}"
                self.base_rate = window.rate
                return
        self._settle(window)

    def _worth_trying(self, window: Window) -> list[str]:
        if window.waited <= ENOUGH:
            idles = window.busy * self.setting.workers * 1.25 <= self.setting.workers - 1
            return ["fewer"] if idles else []
        deeper = ["deeper"] if self.adapts_depth else []
        # Running further ahead gains at most the workers' idle time; more workers can double the rate.
        if window.busy < IDLE / 2:
            return [*deeper, "more", "fewer"]
        return ["more", *(deeper if window.busy < 0.95 else ()), "fewer"]

    def _settle(self, window: Window) -> None:
        self.settled, self._trying, self.base_rate = True, "", 0.0
        self._settled_as, self._changed_in_a_row, self._idle_in_a_row, self._since = window, 0, 0, 0.0
        self.why = self._reason(window)

    def _reason(self, window: Window) -> str:
        words = [f"training waits for data {window.waited:.0%} of the time"]
        if window.waited <= ENOUGH:
            return words[0]
        slower = 1.0
        if "more" in self._gains:
            size, gain, slower = self._gains["more"]
            words.append(f"{count(size, 'worker')} {'was' if size == 1 else 'were'} {gain:.2f} times as fast")
        elif self.setting.workers >= self.limits.workers:
            words.append(f"no more workers because of {self.limits.because}")
        if window.processors_used >= 0.85 * self.limits.processors:
            words.append(all_in_use(self.limits.processors))
        elif slower > 1.3 and window.processors_used < 0.6 * self.limits.processors:
            words.append(f"each sample then took {slower:.1f} times as long: samples compete for a shared resource")
        return "; ".join(words)

    # -- after the search has settled --------------------------------------------------------------

    def _check_settled(self, window: Window) -> None:
        then = self._settled_as
        if then is None:
            return
        self._since += window.seconds
        waits, waited = window.waited > TOO_MUCH, then.waited <= ENOUGH
        fell = window.waited > ENOUGH and window.rate < then.rate * CHANGED
        self._changed_in_a_row = self._changed_in_a_row + 1 if (waits and waited) or fell else 0
        idles = window.waited <= ENOUGH and window.busy * self.setting.workers * 1.5 <= self.setting.workers - 1
        self._idle_in_a_row = self._idle_in_a_row + 1 if idles else 0
        retry_due = window.waited > TOO_MUCH and self._since > self._pause
        if self._changed_in_a_row >= IN_A_ROW or self._idle_in_a_row >= IN_A_ROW or retry_due:
            if retry_due:
                self._pause *= 2
            self.settled, self._trying = False, ""
            self._rejected.clear()
            self._gains.clear()
            self._experiment(window)
