"""`unjam tune`: which settings are tried, in which order, and when it is enough.

NOTE [ The climb ]

First the loader as it is. Then unjam's with 0, 1, 2, 4 … workers, each for a moment, until twice the workers have gained
nothing twice, or the machine allows no more. Around the cheapest that is nearly the best the other things are changed:
torch's loader, a number in between, how far ahead, threads. The few that lead are measured again for longer, one after the
other in rounds, so that a slow minute of the machine hits all of them. Nothing is spent on what cannot win any more.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from unjam.doctor.check.command.measuring_process import Measurer
from unjam.doctor.check.command.target_process import CannotExamine, Patient
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.tune_measurements import Climb, Measured, Rung
from unjam.doctor.rules.tuning import AS_GOOD, HEADROOM
from unjam.loader.driver.auto_size import most_workers

BUDGET = 60.0
# seconds of a first look at a setting, as a part of the budget, and its bounds
SHARE, SHORTEST, LONGEST = 1 / 45, 0.6, 2.5
# a rung that is not this much better than the best below it has gained nothing
GAINED = 1.05
LEADERS = 3
# the part of the time that goes into waiting for single slow samples, from which rates of a moment say little
UNEVEN = 0.1


@dataclass
class Wishes:
    """What the user asked for."""

    budget: float = BUDGET
    step: float | None = None
    step_from: str = ""
    profile: bool = False


class Tuner:
    """One loader on the ladder."""

    def __init__(
        self, patient: Patient, number: int, case: Case, wishes: Wishes, say: Callable[[str, float], None]
    ) -> None:
        self._patient, self._number, self._case, self._wishes, self._say = patient, number, case, wishes, say
        self._began = time.monotonic()
        self._until = self._began + wishes.budget
        self._measurer: Measurer | None = None
        self._found: list[Measured] = []
        self._cut = False
        self._lead: Rung | None = None  # the cheapest that is enough, as far as the climb tells
        self._short = self._usual = min(LONGEST, max(SHORTEST, wishes.budget * SHARE))
        self._most, self._because = most_workers(case.world.memory)
        loader = case.loader
        own = loader.driver
        # what is the platform's own choice need not be said
        start = loader.start_method if loader.num_workers and own == "torch" else ""
        start = "" if start == multiprocessing.get_start_method() else start
        self.as_is = Rung(own, loader.num_workers, start, loader.prefetch_factor if loader.num_workers else 2)

    def run(self) -> Climb:
        """All of it; Ctrl-C ends it early with what is known."""
        stopped = False
        try:
            self._try(self.as_is, self._short)
            self._climb()
            self._vary()
            self._compare()
        except KeyboardInterrupt:
            stopped = True
        finally:
            if self._measurer is not None:
                self._measurer.end()
        return replace(self.so_far(), stopped=stopped)

    def so_far(self) -> Climb:
        """What is known."""
        case, loader = self._case, self._case.loader
        return Climb(
            tuple(self._found),
            self._per_batch(),
            case.world.cpus,
            self._most,
            self._because,
            self.as_is,
            loader.dataset,
            str(loader.made_at or ""),
            case.reading.epochs or (1 if case.reading.once else None),
            loader.length,
            loader.persistent_workers,
            self._wishes.step,
            self._wishes.step_from,
            cut=self._cut,
            seconds=time.monotonic() - self._began,
        )

    def _per_batch(self) -> float:
        """Samples in a batch, as they came."""
        batches = sum(one.batches for one in self._found)
        return (
            sum(one.samples for one in self._found) / batches if batches else float(self._case.loader.batch_size or 1)
        )

    # -- the climb ---------------------------------------------------------------------------------------------------------

    def _climb(self) -> None:
        best, without_gain = 0.0, 0
        for workers in self._ladder():
            found = self._try(Rung("unjam", workers), self._short)
            if found is None:
                self._cut = True
                return
            if found.outcome in ("refused", "memory", "died", "hung"):
                return
            # how many slow samples a moment meets says more than the setting does: go on, and look for longer
            uneven = found.stalled > UNEVEN
            self._short = self._usual * 2 if uneven else self._usual
            without_gain = 0 if found.rate > best * GAINED or uneven else without_gain + (workers > 0)
            best = max(best, found.rate)
            if without_gain >= 2 or not self._has_room(found):
                return
            if workers and self._wishes.step and found.rate * self._wishes.step > 2 * self._per_batch():
                return  # twice what the training takes

    def _ladder(self) -> list[int]:
        steps, workers = [0, 1], 2
        while workers <= self._most:
            steps.append(workers)
            workers *= 2
        if self._most not in steps:
            steps.append(self._most)
        return steps

    def _has_room(self, found: Measured) -> bool:
        """Whether twice the workers would fit into memory."""
        alone = next((one.memory for one in self._found if one.rung == Rung("unjam", 0)), 0)
        each = (found.memory - alone) / max(1, found.rung.workers)
        memory = self._case.world.memory
        if memory is None or alone + each * found.rung.workers * 2 < memory * 0.8:
            return True
        self._most, self._because = found.rung.workers, "memory"
        return False

    def _vary(self) -> None:
        climb = self.so_far()
        good = {rung: climb.rate(rung) for rung in climb.rungs() if climb.rate(rung) > 0 and rung.driver == "unjam"}
        if not good:
            return
        best = max(good.values())
        needed = self._per_batch() / self._wishes.step * HEADROOM if self._wishes.step else best * AS_GOOD
        enough = [rung for rung in good if good[rung] >= min(needed, best * AS_GOOD)]
        lead = self._lead = min(enough, key=lambda rung: rung.workers)
        wanted = [Rung("torch", lead.workers)]
        last = climb.last(lead)
        if lead.workers:
            wanted += [
                lead.changed(workers=n) for n in (lead.workers * 3 // 2, lead.workers * 3 // 4) if n <= self._most
            ]
            if last.stalled > 0.05 or last.busy < 0.9:
                wanted += [lead.changed(prefetch=4), lead.changed(prefetch=8)]
            spare = self._case.world.cpus // lead.workers
            wanted += [lead.changed(threads=spare)] if spare > 1 else []
            # a new interpreter for each worker takes a while to start: only where that leaves time for the rest
            slow_start = lead.workers <= 2 * self._case.world.cpus and self._until - time.monotonic() > BUDGET / 2
            wanted += [Rung("torch", lead.workers, "forkserver")] if slow_start else []
        for rung in wanted:
            self._try(rung, self._short)

    def _compare(self) -> None:
        """The leaders again, in rounds, for as long as there is time."""
        climb = self.so_far()
        rates = {rung: climb.rate(rung) for rung in climb.rungs()}
        leaders = sorted((rung for rung in rates if rates[rung] > 0), key=lambda rung: -rates[rung])[:LEADERS]
        best = max(rates.values(), default=0.0)
        # the cheapest that is about as good may be the answer: it is measured again too
        about = [rung for rung in rates if rates[rung] >= best * 0.9]
        cheap = min(about, key=lambda rung: rung.workers) if about else None
        for rung in (cheap, self._lead, Rung("torch", self._lead.workers) if self._lead else None, self.as_is):
            if rung is not None and rung not in leaders and rates.get(rung, 0) > 0:
                leaders.append(rung)
        profile = next((rung for rung in leaders if rung.driver == "unjam" and rung.workers), None)
        if self._wishes.profile and profile is not None:
            self._try(profile, self._short * 2, profile=True)
        for _ in range(3):
            each = (self._until - time.monotonic()) / max(1, len(leaders))
            if each < self._short + 1.0:
                return
            for rung in leaders:
                self._try(rung, min(self._short * 2, max(self._short, each - 2)))

    def _try(self, rung: Rung, seconds: float, *, profile: bool = False) -> Measured | None:
        left = self._until - time.monotonic()
        known = next((one for one in self._found if one.rung == rung), None)
        if left < seconds + 0.5 or (known is not None and not known.fine and not profile):
            return None
        done = 1 - left / self._wishes.budget
        self._say(f"{rung}", done)
        if self._measurer is None or self._measurer.gone:
            self._measurer = self._patient.measurer(self._number)
        wanted = profile or (self._wishes.profile and rung == Rung("unjam", 1))
        found = self._measurer.measure(
            rung, seconds, lambda: self._say("", self._progress()), profile=wanted, most=left
        )
        # who profiles is slower: what it says of rates is not kept
        self._found.append(replace(found, counted=(0, 0.0), rates=()) if wanted and known is not None else found)
        return found

    def _progress(self) -> float:
        return min(1.0, (time.monotonic() - self._began) / self._wishes.budget)


def tune(
    patient: Patient, target: str, wishes: Wishes, say: Callable[[str, float], None] = lambda _, __: None
) -> tuple[Climb, Case, int]:
    """Climb the ladder with the loader that a program iterates first; the answer says how many others it has."""
    try:
        say(f"running {target} until its first iter(loader)", 0.0)
        loaders = patient.wait(lambda: None)
        case, _ = patient.gather(0)
        if case.drains:
            raise CannotExamine(
                "its samples come from a queue, a pipe or a socket: what one trial takes is gone for the next"
            )
        climb = Tuner(patient, 0, case, wishes, say).run()
        return climb, case, loaders
    finally:
        patient.end()
