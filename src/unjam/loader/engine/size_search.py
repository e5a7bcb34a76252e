"""How many workers, and how far ahead: decided from what the consumer's waiting and the workers' idling say.

NOTE [ Pace ]

A window is a stretch of batches under one setting. What it can say:

    the consumer hardly waits                     enough; fewer workers, if they idle
    it waits, and workers idle                    batches are stuck behind a slow one: run further ahead
    it waits, and the workers are busy            more workers; where that gained nothing, back to where it was

Every change is an experiment: the window before and the window after are compared, and a change that costs something is
kept only if it gained `WORTH`. A change that saves something is kept unless it lost more than `KEEP`. Both have a margin, so
that noise does not move the setting to and fro. When no direction is left to try, the pace is settled; it opens again when
what was measured then has clearly changed, and, while the consumer still waits, now and then, with pauses that double.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

# a consumer that waits less than this part of its time does not wait
ENOUGH = 0.04
# and one that waits more than this, having waited less, waits again
TOO_MUCH = 0.15
# an experiment that costs something must gain this much, one that saves something may lose this much
WORTH, KEEP = 1.06, 0.97
# workers that make batches for less than this part of their time idle
IDLE = 0.8
# windows in a row that must agree before a settled pace is opened again
IN_A_ROW = 3
# a rate that fell below this part of the settled one has changed
CHANGED = 0.7
# seconds until a settled pace whose consumer waits is tried again; doubled each time
SECOND_THOUGHTS = 60.0
MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class Setting:
    """How many workers, with how many batches under way for each."""

    workers: int
    depth: int


@dataclass(frozen=True, slots=True)
class Window:
    """What a stretch of time under one setting showed.

    waited: the part of the time in which the consumer waited. busy: the part of the workers' time in which they made
    batches. computed: processors in use, by the workers together; NaN where nobody tells.
    """

    seconds: float
    batches: int
    samples: int
    waited: float
    busy: float
    computed: float = math.nan
    # the median time of a sample; and whether a few batches take most of the time
    usual: float = math.nan
    uneven: bool = False

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def gain(self, before: Window, workers: int, workers_before: int) -> float:
        """How many times as quick as `before`.

        Where a few slow samples take most of the time, how many of them a window happened to meet says more about the window
        than about the setting. There the work that was done is compared: the workers' busy time, in units of what a usual
        sample takes under each setting.
        """
        if (self.uneven or before.uneven) and self.usual > 0 and before.usual > 0:
            done, done_before = self.busy * workers / self.usual, before.busy * workers_before / before.usual
            return done / done_before if done_before else 1.0
        return self.rate / before.rate if before.rate else 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine allows. `because`: what it is that allows no more workers, in words."""

    workers: int
    depth: int
    processors: int
    because: str = "the limit"


@dataclass(frozen=True, slots=True)
class Step:
    """One experiment, for whoever wants to know why."""

    batches: int
    setting: Setting
    rate: float
    waited: float
    verdict: str


@dataclass(slots=True)
class Pace:
    """See NOTE [ Pace ]. `setting` is what should be; `judge` changes it."""

    setting: Setting
    limits: Limits
    adapts_depth: bool = True
    settled: bool = False
    why: str = "nothing measured yet"
    batches: int = 0
    # while something is tried: what it is compared with; 0 otherwise
    base_rate: float = 0.0
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    _trying: str = ""
    _base: tuple[Setting, Window] | None = None
    _closed: set[str] = field(default_factory=set)
    _gains: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    _settled_as: Window | None = None
    _against: int = 0
    _idle: int = 0
    _since: float = 0.0
    _pause: float = SECOND_THOUGHTS

    def judge(self, window: Window) -> Setting:
        """Take what the present setting showed; return the setting to use from now on."""
        self.batches += window.batches
        if self.settled:
            self._look_again(window)
        else:
            self._experiment(window)
        return self.setting

    # -- experiments ---------------------------------------------------------------------------------------------------

    def _experiment(self, window: Window) -> None:
        base, tried = self._base, self._trying
        verdict = "first"
        if base is None or not tried:
            self._base = (self.setting, window)
        elif self._passed(tried, window, *base):
            verdict = "kept"
            self._base = (self.setting, window)
            self._closed |= {"more": {"fewer"}, "fewer": {"more"}}.get(tried, set())
        else:
            verdict = "taken back"
            self._closed.add(tried)
            gain = window.gain(base[1], self.setting.workers, base[0].workers)
            slower = window.usual / base[1].usual if base[1].usual else 1.0
            self._gains[tried] = (self.setting.workers, gain, slower)
        self.steps.append(Step(self.batches, self.setting, window.rate, window.waited, verdict))
        if verdict == "taken back" and base is not None:
            self.setting, window = base
        self._next(window)

    def _passed(self, tried: str, now: Window, was: Setting, before: Window) -> bool:
        gain = now.gain(before, self.setting.workers, was.workers)
        if tried in ("more", "deeper"):
            return now.waited <= ENOUGH < before.waited or gain >= WORTH
        if before.waited <= ENOUGH:
            return now.waited <= ENOUGH  # the consumer sets the rate, not the workers
        return gain >= KEEP

    def _next(self, window: Window) -> None:
        """What to try next, given the best setting so far and what it showed."""
        workers, depth = self.setting.workers, self.setting.depth
        for direction in self._worth_trying(window):
            if direction in self._closed:
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
                self.why = f"trying {wanted.workers} workers, {wanted.depth} batches ahead for each"
                self.base_rate = window.rate
                return
        self._settle(window)

    def _worth_trying(self, window: Window) -> list[str]:
        if window.waited <= ENOUGH:
            idles = window.busy * self.setting.workers * 1.25 <= self.setting.workers - 1
            return ["fewer"] if idles else []
        deeper = ["deeper"] if self.adapts_depth else []
        # running further ahead can win what workers idle, no more; twice the workers twice of what they do
        if window.busy < IDLE / 2:
            return [*deeper, "more", "fewer"]
        return ["more", *(deeper if window.busy < 0.95 else ()), "fewer"]

    def _settle(self, window: Window) -> None:
        self.settled, self._trying, self.base_rate = True, "", 0.0
        self._settled_as, self._against, self._idle, self._since = window, 0, 0, 0.0
        self.why = self._reason(window)

    def _reason(self, window: Window) -> str:
        if window.waited <= ENOUGH:
            return f"the training waits for data {window.waited:.0%} of its time"
        slower = 1.0
        words = [f"the training waits for data {window.waited:.0%} of its time"]
        if "more" in self._gains:
            size, gain, slower = self._gains["more"]
            words.append(f"{size} workers were {gain:.2f} times as fast")
        elif self.setting.workers >= self.limits.workers:
            words.append(f"{self.limits.because} allows no more workers")
        if window.computed >= 0.85 * self.limits.processors:
            words.append(f"all {self.limits.processors} processors are in use")
        elif slower > 1.3 and window.computed < 0.6 * self.limits.processors:
            words.append(f"with them a sample took {slower:.1f} times as long: it waits for something they share")
        return "; ".join(words)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def _look_again(self, window: Window) -> None:
        then = self._settled_as
        if then is None:
            return
        self._since += window.seconds
        waits, waited = window.waited > TOO_MUCH, then.waited <= ENOUGH
        fell = window.waited > ENOUGH and window.rate < then.rate * CHANGED
        self._against = self._against + 1 if (waits and waited) or fell else 0
        idles = window.waited <= ENOUGH and window.busy * self.setting.workers * 1.5 <= self.setting.workers - 1
        self._idle = self._idle + 1 if idles else 0
        thoughts = window.waited > TOO_MUCH and self._since > self._pause
        if self._against >= IN_A_ROW or self._idle >= IN_A_ROW or thoughts:
            if thoughts:
                self._pause *= 2
            self.settled, self._trying = False, ""
            self._closed.clear()
            self._gains.clear()
            self._experiment(window)
