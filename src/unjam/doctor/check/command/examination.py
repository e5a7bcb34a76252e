"""The examination of one loader: which trials, in which order, and when to stop.

NOTE [ How a cause is proven ]

First the loader runs alone, without workers, and then as the program made it. What the rules see in those two they may
suspect; a rule that suspects names the one change that would remove its cause, and that trial is made. The failure gone
with the change, and back in another run without it: proven. A failure that does not come back is only likely.

What cannot be toggled is said to be likely or possible, however plausible. Time is a budget for all trials together: the
two first ones come out of it, then the changes in order of harm; what was not tried is said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from unjam.doctor.check.command.target_process import CannotExamine, Interrupted, Patient, Tries
from unjam.doctor.check.command.trial_watch import Patience
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Plan, Trial
from unjam.doctor.rules import RULES
from unjam.doctor.rules.rule import Confidence, Finding, Severity, Suspicion, by_harm, fit_to_show, without_echoes

MOST_ROUNDS = 4
SPARE = 512 << 20


class Examination:
    """One loader on the table."""

    def __init__(
        self,
        patient: Patient,
        number: int,
        case: Case,
        tries: Tries,
        budget: float,
        say: Callable[[str], None],
        hurry: float = 1.0,
        *,
        last: bool = True,
    ) -> None:
        self.case = case
        self._patient, self._number, self._tries, self._say = patient, number, tries, say
        self._until = time.monotonic() + budget
        self._budget = budget
        self._hurry = hurry  # a part of the usual patience
        self._last = last  # no other loader needs the program afterwards
        self.untried: list[Plan] = []

    def run(self) -> list[Finding]:
        """The first two trials, then whatever the rules want to see."""
        try:
            self._first()
            self._prove()
            if self._see_further():
                self._prove()
            self._once_more()
        except CannotExamine as error:
            self._say(f"stopped: {error}")
        return self.findings()

    def _prove(self) -> None:
        """Whatever the rules want to see, the worst first, while there is time."""
        for _ in range(MOST_ROUNDS):
            wanted = self._wanted()
            for plan in wanted:
                if self._left() < 2:
                    break
                self._try(plan)
            if not wanted or self._left() < 2:
                break
        self.untried = self._wanted()

    def _see_further(self) -> bool:
        """Behind a freeze other things may be wrong: with the change that lets the loader go on they can be seen."""
        case, as_is = self.case, self.case.as_is
        if as_is is None or as_is.outcome != "hung" or self._left() < 4 or self._patient.gone:
            return False
        for trial in case.trials:
            eased = {name: value for name in ("release", "threads") if (value := getattr(trial.plan, name))}
            if eased and trial.moved_on and trial.plan == as_is.plan.changed(**eased) and case.first_alone is not None:
                case.eased = eased
                if not trial.fine:
                    self._try(trial.plan.changed(tolerant=True))
                if case.first_alone.outcome == "hung":
                    self._try(case.first_alone.plan.changed(**eased))
                return True
        return False

    def findings(self) -> list[Finding]:
        """What the rules say of all that is known now."""
        found = [said for rule in RULES if isinstance(said := rule.detect(self.case), Finding)]
        return [fit_to_show(finding) for finding in by_harm(without_echoes(found))]

    # -- trials ------------------------------------------------------------------------------------------------------------

    def _first(self) -> None:
        loader, share = self.case.loader, self._budget
        alone = Plan(0, epochs=2 if loader.iterable else 1, seconds=min(8.0, share * 0.13), tolerant=True)
        if not loader.num_workers:
            trial = self._attempt(alone)
            # a loader without workers forks nothing: what a fork breaks must not be held against it
            if trial.outcome == "hung" and self._last and self._left() > 5:
                trial = replace(self._attempt(replace(alone, in_place=True)), plan=alone)
            elif trial.outcome == "hung":
                trial = replace(trial, outcome="refused", note="it freezes in a fork, which says nothing here")
            self.case.trials.append(trial)
            return
        # a new interpreter for each worker and epoch takes its time before anything is loaded
        seconds = min(10.0, share * 0.17) if loader.start_method == "fork" else min(25.0, share * 0.4)
        as_is = Plan(
            loader.num_workers, loader.start_method, epochs=1 if self.case.reading.once else 2, seconds=seconds
        )
        trial = self._try(as_is)
        if (self.case.drains and trial.samples) or self._left() < 2:
            return  # what it took from a queue or pipe is gone; another trial would find it empty
        self._try(alone)
        if trial.outcome == "raised" and trial.bad and self._left() > 5:
            self._try(replace(as_is, tolerant=True))

    def _wanted(self) -> list[Plan]:
        found: list[Plan] = []
        suspicions = [said for rule in RULES if isinstance(said := rule.detect(self.case), Suspicion)]
        told: list[Finding | Suspicion] = [*self.findings(), *suspicions]
        for one in told:
            for plan in one.wants:
                if plan not in found and self.case.tried(plan) is None:
                    found.append(plan)
        # the program's own process is used up by a trial in it
        return sorted((p for p in found if self._last or not p.in_place), key=lambda plan: plan.in_place)

    def _once_more(self) -> None:
        """Whether the failure comes back without the change."""
        as_is = self.case.as_is
        if as_is is None or as_is.fine or self._left() < 4 or self._patient.gone:
            return
        found = [f for f in self.findings() if f.weight is not Severity.NOTE]
        if any(f.confidence is Confidence.PROVEN for f in found):
            self.case.again = self._attempt(as_is.plan)

    def _try(self, plan: Plan) -> Trial:
        trial = self._attempt(plan)
        self.case.trials.append(trial)
        return trial

    def _attempt(self, plan: Plan) -> Trial:
        if self._patient.gone:
            return Trial(plan, "refused", 0.0, note="the program is gone")
        self._say(f"trying {plan}")
        seconds = plan.seconds * min(1.0, max(0.4, self._budget / 60)) if plan.measured else plan.seconds
        plan_now = replace(plan, seconds=min(seconds, max(1.0, self._left() - 1)))
        reserve = min(SPARE, (self.case.world.memory or SPARE * 10) // 10)
        try:
            trial = self._patient.attempt(self._number, plan_now, self._tries, self._patience(plan_now), reserve)
        except Interrupted as stop:
            self.case.trials.append(replace(stop.trial, plan=plan))
            raise
        return replace(trial, plan=plan)

    def _patience(self, plan: Plan) -> Patience:
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
            waiting, computing = waiting * self._hurry, computing * self._hurry
        waiting, computing = min(waiting, left), min(computing, left)
        return Patience(waiting, computing, min(plan.seconds + computing + 5, left + 1))

    def _left(self) -> float:
        return self._until - time.monotonic()


def table(case: Case) -> list[tuple[str, str, float]]:
    """What was tried and what came of it, in words."""
    rows = [(str(trial.plan), outcome_words(trial), trial.seconds) for trial in case.trials]
    if case.again is not None:
        rows.append((f"{case.again.plan}, once more", outcome_words(case.again), case.again.seconds))
    return rows


def outcome_words(trial: Trial) -> str:
    """What came of a trial, in a few words."""
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
