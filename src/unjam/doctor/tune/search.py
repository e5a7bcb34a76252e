"""`unjam tune`: which settings it measures, in which order, and when it stops.

NOTE [ Order of the measurements ]

First we measure the unchanged loader. Then unjam's loader with 0, 1, 2, 4 … workers, each for a
short time, until doubling the workers brought no gain twice, or the machine allows no more workers.
Then we take the cheapest setting that is nearly the best, and vary it: torch's loader, other numbers
of workers, prefetch, threads. At the end we measure the few best settings again, in rounds, so that
a slow minute of the machine affects all of them. Settings that failed are not measured again.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from unjam.doctor.check.command.captured_program import CannotExamine
from unjam.doctor.check.command.measuring_process import MeasuringProcess
from unjam.doctor.check.command.target_process import TargetProcess
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.tune_measurements import Measurement, TuneResult, TuneSetting
from unjam.doctor.rules.tuning import AS_GOOD, HEADROOM
from unjam.loader.driver.auto_size import most_workers

BUDGET = 60.0
# duration of a first measurement: share of the budget, and its limits in seconds
SHARE, SHORTEST, LONGEST = 1 / 45, 0.6, 2.5
# more workers must be better than the best so far by this factor, otherwise they gain nothing
GAINED = 1.05
LEADERS = 3
# share of the time spent on single slow samples; above it, a short measurement is not reliable
UNEVEN = 0.1


@dataclass
class TuneOptions:
    """What the user asked for."""

    budget: float = BUDGET
    step: float | None = None
    step_from: str = ""
    profile: bool = False


class Tuner:
    """Measures settings of one loader."""

    def __init__(
        self, process: TargetProcess, number: int, case: Case, options: TuneOptions, say: Callable[[str, float], None]
    ) -> None:
        self._target_process, self._number, self._case, self._options, self._say = process, number, case, options, say
        self._began = time.monotonic()
        self._until = self._began + options.budget
        self._measuring: MeasuringProcess | None = None
        self._found: list[Measurement] = []
        self._cut = False
        self._lead: TuneSetting | None = None  # the cheapest setting that is good enough so far
        self._short = self._usual = min(LONGEST, max(SHORTEST, options.budget * SHARE))
        self._most, self._because = most_workers(case.process_facts.memory)
        loader = case.loader
        own = loader.driver
        # leave out the platform's default start method
        start = loader.start_method if loader.num_workers and own == "torch" else ""
        start = "" if start == multiprocessing.get_start_method() else start
        self.as_is = TuneSetting(own, loader.num_workers, start, loader.prefetch_factor if loader.num_workers else 2)

    def run(self) -> TuneResult:
        """Measure all settings; Ctrl-C stops early and returns what was measured."""
        stopped = False
        try:
            self._try(self.as_is, self._short)
            self._try_more_workers()
            self._try_variants()
            self._measure_best_again()
        except KeyboardInterrupt:
            stopped = True
        finally:
            if self._measuring is not None:
                self._measuring.end()
        return replace(self.so_far(), stopped=stopped)

    def so_far(self) -> TuneResult:
        """Return all measurements up to now."""
        case, loader = self._case, self._case.loader
        return TuneResult(
            tuple(self._found),
            self._per_batch(),
            case.process_facts.cpus,
            self._most,
            self._because,
            self.as_is,
            loader.dataset,
            str(loader.made_at or ""),
            case.reading.epochs or (1 if case.reading.iterated_once else None),
            loader.length,
            loader.persistent_workers,
            self._options.step,
            self._options.step_from,
            cut=self._cut,
            seconds=time.monotonic() - self._began,
        )

    def _per_batch(self) -> float:
        """Return the mean number of samples in a batch."""
        batches = sum(one.batches for one in self._found)
        return (
            sum(one.samples for one in self._found) / batches if batches else float(self._case.loader.batch_size or 1)
        )

    # -- trying settings one after another ---------------------------------------------------------

    def _try_more_workers(self) -> None:
        best, without_gain = 0.0, 0
        for workers in self._worker_counts():
            found = self._try(TuneSetting("unjam", workers), self._short)
            if found is None:
                self._cut = True
                return
            if found.outcome in ("refused", "memory", "died", "hung"):
                return
            # slow samples distort a short measurement: continue, and measure twice as long
            uneven = found.stalled > UNEVEN
            self._short = self._usual * 2 if uneven else self._usual
            without_gain = 0 if found.rate > best * GAINED or uneven else without_gain + (workers > 0)
            best = max(best, found.rate)
            if without_gain >= 2 or not self._doubling_fits(found):
                return
            if workers and self._options.step and found.rate * self._options.step > 2 * self._per_batch():
                return  # twice as fast as the training needs

    def _worker_counts(self) -> list[int]:
        doubled = (1 << number for number in range(self._most.bit_length()))
        return list(dict.fromkeys([0, *doubled, self._most]))

    def _doubling_fits(self, found: Measurement) -> bool:
        """Whether twice as many workers would fit into memory."""
        alone = next((one.memory for one in self._found if one.setting == TuneSetting("unjam", 0)), 0)
        each = (found.memory - alone) / max(1, found.setting.workers)
        memory = self._case.process_facts.memory
        if memory is None or alone + each * found.setting.workers * 2 < memory * 0.8:
            return True
        self._most, self._because = found.setting.workers, "memory"
        return False

    def _try_variants(self) -> None:
        tune_result = self.so_far()
        good = {setting: rate for setting, rate in tune_result.good_rates().items() if setting.driver == "unjam"}
        if not good:
            return
        best = max(good.values())
        needed = self._per_batch() / self._options.step * HEADROOM if self._options.step else best * AS_GOOD
        enough = [setting for setting in good if good[setting] >= min(needed, best * AS_GOOD)]
        lead = self._lead = min(enough, key=lambda setting: setting.workers)
        wanted = [TuneSetting("torch", lead.workers)]
        last = tune_result.last(lead)
        if lead.workers:
            wanted += [
                lead.changed(workers=n) for n in (lead.workers * 3 // 2, lead.workers * 3 // 4) if n <= self._most
            ]
            if last.stalled > 0.05 or last.busy < 0.9:
                wanted += [lead.changed(prefetch=4), lead.changed(prefetch=8)]
            spare = self._case.process_facts.cpus // lead.workers
            wanted += [lead.changed(threads=spare)] if spare > 1 else []
            # each worker starts a new interpreter, which is slow: only if enough time is left
            slow_start = (
                lead.workers <= 2 * self._case.process_facts.cpus and self._until - time.monotonic() > BUDGET / 2
            )
            wanted += [TuneSetting("torch", lead.workers, "forkserver")] if slow_start else []
        for setting in wanted:
            self._try(setting, self._short)

    def _measure_best_again(self) -> None:
        """Measure the best settings again, in rounds, while there is time."""
        rates = self.so_far().good_rates()
        best_settings = sorted(rates, key=lambda setting: -rates[setting])[:LEADERS]
        best = max(rates.values(), default=0.0)
        # the cheapest setting that is nearly as good may become the choice: measure it again too
        about = [setting for setting in rates if rates[setting] >= best * 0.9]
        cheap = min(about, key=lambda setting: setting.workers) if about else None
        for setting in (
            cheap,
            self._lead,
            TuneSetting("torch", self._lead.workers) if self._lead else None,
            self.as_is,
        ):
            if setting in rates and setting not in best_settings:
                best_settings.append(setting)
        profile = next((setting for setting in best_settings if setting.driver == "unjam" and setting.workers), None)
        if self._options.profile and profile is not None:
            self._try(profile, self._short * 2, profile=True)
        for _ in range(3):
            each = (self._until - time.monotonic()) / max(1, len(best_settings))
            if each < self._short + 1.0:
                return
            for setting in best_settings:
                self._try(setting, min(self._short * 2, max(self._short, each - 2)))

    def _try(self, setting: TuneSetting, seconds: float, *, profile: bool = False) -> Measurement | None:
        left = self._until - time.monotonic()
        known = next((one for one in self._found if one.setting == setting), None)
        if left < seconds + 0.5 or (known is not None and not known.fine and not profile):
            return None
        done = 1 - left / self._options.budget
        self._say(f"{setting}", done)
        if self._measuring is None or self._measuring.gone:
            self._measuring = self._target_process.measuring(self._number)
        wanted = profile or (self._options.profile and setting == TuneSetting("unjam", 1))
        found = self._measuring.measure(
            setting, seconds, lambda: self._say("", self._progress()), profile=wanted, most=left
        )
        # profiling slows the workers down: drop these rates if we have others
        self._found.append(replace(found, counted=(0, 0.0), rates=()) if wanted and known is not None else found)
        return found

    def _progress(self) -> float:
        return min(1.0, (time.monotonic() - self._began) / self._options.budget)


def tune(
    process: TargetProcess, target: str, options: TuneOptions, say: Callable[[str, float], None] = lambda _, __: None
) -> tuple[TuneResult, int]:
    """Tune the loader that a program iterates first; also return how many loaders it has."""
    try:
        say(f"running {target} until its first iter(loader)", 0.0)
        loaders = process.wait_for_loader()
        case, _ = process.gather(0)
        if case.drains:
            raise CannotExamine(
                "its samples come from a queue, a pipe or a socket: data consumed by one trial would be missing from the next"
            )
        return Tuner(process, 0, case, options, say).run(), loaders
    finally:
        process.end()
