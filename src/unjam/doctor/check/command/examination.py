"""The examination of one loader: which trials to run, in which order, and when to stop.

First the loader runs as the program created it, then inline, without workers. From these two trials the
rules derive possible causes, and name the change that would remove each; we run those trials (NOTE [ How a
cause is proven ] in `doctor/proof`). All trials share one time budget: the first two trials come first,
then the changes, the most severe finding first. The report lists the trials for which no time was left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from unjam.doctor.check.command.captured_program import CannotExamine, CapturedProgram, CheckInterrupted
from unjam.doctor.check.command.trial_watch import TrialTimeouts
from unjam.doctor.check.trial.tracking import HidingHandlers
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Plan, Trial
from unjam.doctor.judge import case_findings, findings_of_mechanisms, findings_of_trials
from unjam.doctor.proof import Severity
from unjam.units import duration

MOST_ROUNDS = 4
SPARE = 512 << 20


class Examination:
    """Runs the trials of one loader that the rules ask for."""

    def __init__(
        self,
        process: CapturedProgram,
        number: int,
        case: Case,
        handlers: HidingHandlers,
        budget: float,
        say: Callable[[str], None],
        timeout_factor: float = 1.0,
        *,
        last: bool = True,
    ) -> None:
        self.case = case
        self._program, self._number, self._handlers, self._say = process, number, handlers, say
        self._until = time.monotonic() + budget
        self._budget = budget
        self._timeout_factor = timeout_factor
        self._last = last  # no other loader needs the program afterwards
        self.untried: list[Plan] = []

    def run(self) -> None:
        """Run the first two trials, then those that the rules ask for."""
        try:
            self._run_first_trials()
            self._prove()
            if self._look_past_freeze():
                self._prove()
            self._repeat()
        except CannotExamine as error:
            self._say(f"stopped: {error}")

    def _prove(self) -> None:
        """Run the trials that the rules ask for, the most severe findings first, while there is time."""
        for _ in range(MOST_ROUNDS):
            wanted = self._wanted()
            for plan in wanted:
                if self._left() < 2:
                    break
                self._try(plan)
            if not wanted or self._left() < 2:
                break
        self.untried = self._wanted()

    def _look_past_freeze(self) -> bool:
        """Look for problems that a freeze hides; returns whether there are new trials.

        This needs a trial whose change unblocks the frozen loader.
        """
        case, as_is = self.case, self.case.as_is
        if as_is is None or as_is.outcome != "hung" or self._left() < 4 or self._program.gone:
            return False
        for trial in case.trials:
            eased = {name: value for name in ("release", "threads") if (value := getattr(trial.plan, name))}
            if (
                eased
                and trial.progressed
                and trial.plan == as_is.plan.changed(**eased)
                and case.first_alone is not None
            ):
                case.unfreezing_change = eased
                if not trial.fine:
                    self._try(trial.plan.changed(tolerant=True))
                if case.first_alone.outcome == "hung":
                    self._try(case.first_alone.plan.changed(**eased))
                return True
        return False

    # -- trials ------------------------------------------------------------------------------------

    def _run_first_trials(self) -> None:
        loader, share = self.case.loader, self._budget
        without_workers = Plan(0, epochs=2 if loader.iterable else 1, seconds=min(8.0, share * 0.13), tolerant=True)
        if not loader.num_workers:
            trial = self._attempt(without_workers)
            # the loader itself never forks, so a freeze that our fork causes must not count
            if trial.outcome == "hung" and self._last and self._left() > 5:
                own = self._attempt(replace(without_workers, in_place=True))
                trial = trial if own.outcome == "refused" else own
            if trial.outcome == "hung" and not trial.plan.in_place:
                lacks = "it freezes in a fork, which does not have the program's threads"
                trial = replace(trial, outcome="refused", note=lacks)
            self.case.trials.append(replace(trial, plan=without_workers))
            return
        # without fork, every worker of every epoch starts a new interpreter, which takes time
        seconds = min(10.0, share * 0.17) if loader.start_method == "fork" else min(25.0, share * 0.4)
        as_is = Plan(
            loader.num_workers, loader.start_method, epochs=1 if self.case.reading.iterated_once else 2, seconds=seconds
        )
        trial = self._try(as_is)
        drained = self.case.drains and trial.samples
        if (drained and not self.case.connections) or self._left() < 2:
            return  # the trial has emptied the queue or pipe: another would get no data
        alone = self._attempt(without_workers)
        if drained and (not alone.fine or alone.bad):
            # a server that answers requests answers again, but one that only sends may have sent everything
            note = "an earlier trial may have read all the data of the connection"
            alone = replace(alone, outcome="refused", note=note)
        self.case.trials.append(alone)
        if trial.outcome == "raised" and trial.bad and self._left() > 5:
            self._try(replace(as_is, tolerant=True))

    def _wanted(self) -> list[Plan]:
        kept = case_findings(self.case)
        undecided = [one for one in findings_of_trials(self.case) if one.proof is not None and one.proof.void]
        found = dict.fromkeys(
            plan
            for one in [*kept, *undecided, *findings_of_mechanisms(self.case)]
            for plan in one.wants
            if self.case.tried(plan) is None
        )
        # a trial in the program's own process ends it, so such trials come last
        return sorted((p for p in found if self._last or not p.in_place), key=lambda plan: plan.in_place)

    def _repeat(self) -> None:
        """Repeat the failing trials: a failure that a change removed must return without the change."""
        serious = [
            one
            for one in [*case_findings(self.case), *findings_of_mechanisms(self.case)]
            if one.weight is not Severity.NOTE
        ]
        for plan in dict.fromkeys(plan for one in serious if one.proof is not None for plan in one.proof.repeats):
            if self._left() > 4 and not self._program.gone:
                self.case.repeats.append(self._attempt(plan))

    def _try(self, plan: Plan) -> Trial:
        trial = self._attempt(plan)
        self.case.trials.append(trial)
        return trial

    def _attempt(self, plan: Plan) -> Trial:
        if self._program.gone:
            return Trial(plan, "refused", 0.0, note="the program has ended")
        seconds = plan.seconds * min(1.0, max(0.4, self._budget / 60)) if plan.measured else plan.seconds
        plan_now = replace(plan, seconds=min(seconds, max(1.0, self._left() - 1)))
        self._say(f"trying {plan} (up to {duration(self._timeouts(plan_now).whole)})")
        reserve = min(SPARE, (self.case.process_facts.memory or SPARE * 10) // 10)
        try:
            trial = self._program.run_trial(self._number, plan_now, self._handlers, self._timeouts(plan_now), reserve)
        except CheckInterrupted as stop:
            self.case.trials.append(replace(stop.trial, plan=plan))
            raise
        return replace(trial, plan=plan)

    def _timeouts(self, plan: Plan) -> TrialTimeouts:
        known = [sample.seconds for trial in self.case.trials for sample in trial.samples]
        slow = max(known, default=0.0)
        if plan.workers and plan.start in ("spawn", "forkserver"):
            waiting, computing = max(10.0, 3 * slow), 30.0  # a new interpreter imports first
        elif not known:
            waiting, computing = 5.0, 12.0
        else:
            waiting, computing = max(3.0, 3 * slow + 2), max(8.0, 10 * slow + 4)
        left = max(2.0, self._left())
        if plan.start not in ("spawn", "forkserver"):
            waiting, computing = waiting * self._timeout_factor, computing * self._timeout_factor
        waiting, computing = min(waiting, left), min(computing, left)
        return TrialTimeouts(waiting, computing, min(plan.seconds + computing + 5, left + 1))

    def _left(self) -> float:
        return self._until - time.monotonic()


def trial_rows(case: Case) -> list[tuple[str, str, float]]:
    """The plan, outcome and seconds of each trial."""
    rows = [(str(trial.plan), outcome_words(trial), trial.seconds) for trial in case.trials]
    rows += [(f"{trial.plan}, repeated", outcome_words(trial), trial.seconds) for trial in case.repeats]
    return rows


def outcome_words(trial: Trial) -> str:
    """The outcome of a trial in a few words."""
    done = len(trial.samples)
    match trial.outcome:
        case "finished" | "cut":
            bad = f", {len(trial.bad)} failed" if trial.bad else ""
            return f"{done} samples{bad}"
        case "raised":
            assert trial.raised is not None
            cause = next((bad for bad in trial.bad if not trial.plan.tolerant), None) or trial.raised
            return f"{cause.type_name} after {done} samples"
        case "hung":
            return f"frozen after {done} samples"
        case "died":
            end = next((e for e in trial.ends), None)
            return f"a process ended ({end.signal or f'exit code {end.code}' if end else '?'}) after {done} samples"
        case "memory":
            return f"stopped: memory ran low after {done} samples"
        case _:
            return f"not possible: {trial.note}"
