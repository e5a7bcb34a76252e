"""The basis of a finding, and the only code that can call it "proven".

NOTE [ How a cause is proven ]

A cause is proven by removing it. A rule names the one change that would remove its cause (a
`Toggle`), and the examination runs the loader with that change. The result determines the confidence:

    proven    the failure disappeared when only this cause was changed, and returned in another
              run without the change
    likely    it disappeared, but no second run was made or the failure did not return in it; or
              the change was broad: without workers, or with another start method, much else differs;
              or no change could be tried, and all facts agree with this cause
    possible  the change made no difference, or only one fact suggests this cause
    seen      nothing is inferred: the finding is itself the observation

A rule gives only the basis: a `Ground` or a `Toggle`. It cannot choose the confidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING

from unjam.doctor.facts.trial import Plan, Trial
from unjam.units import count

if TYPE_CHECKING:
    from unjam.doctor.facts.case import Case


class Confidence(Enum):
    """How certain a finding is."""

    PROVEN = "proven"
    SEEN = "seen"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Severity(Enum):
    """How bad a finding is: it harms the run or its results, something less, or nothing yet."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Ground(Enum):
    """The basis of a finding for which no change has been tried."""

    OBSERVED = Confidence.SEEN
    AGREES = Confidence.LIKELY
    SUGGESTED = Confidence.POSSIBLE


OBSERVED, AGREES, SUGGESTED = Ground.OBSERVED, Ground.AGREES, Ground.SUGGESTED


def recovers(base: Trial, changed: Trial) -> bool:
    """Whether a failure disappeared: a frozen loader makes progress, any other one finishes."""
    if base.fine and not base.bad:
        return False
    return changed.progressed if base.outcome == "hung" else changed.fine and not changed.bad


@dataclass(frozen=True, slots=True)
class Toggle:
    """A change that would remove the cause.

    changed: plans that make it in different ways; one that works is enough.
    removes: whether the symptom of the first trial is absent from the second.
    ground: the basis until the change has been tried.
    decisive: there is no finding without this trial, nor if the change makes no difference.
    repeat: try again without the change. A speed is measured only once, and so stays likely.
    identified: the culprit itself was observed failing, so that even a broad change is a proof.
    """

    base: Plan
    changed: tuple[Plan, ...]
    removes: Callable[[Trial, Trial], bool] = recovers
    ground: Ground = AGREES
    decisive: bool = False
    repeat: bool = True
    identified: bool = False


# fields of a plan that determine the processes, and so change much more than one cause
_BROAD = {"workers", "start", "fresh", "in_place"}
_NEUTRAL = {"seconds", "epochs", "tolerant", "limit"}  # these do not change the processes


def is_broad(base: Plan, changed: Plan) -> bool:
    """Whether a change removes more than one possible cause."""
    differing = {one.name for one in fields(Plan) if getattr(base, one.name) != getattr(changed, one.name)} - _NEUTRAL
    if differing == {"workers"} and changed.workers and base.workers:
        return False  # only another number of workers
    return differing <= _BROAD


Basis = Ground | Toggle


@dataclass(frozen=True, slots=True)
class Proof:
    """The confidence of a finding, the trials that it comes from, and the trials that could raise it."""

    confidence: Confidence
    words: tuple[str, ...] = ()
    wants: tuple[Plan, ...] = ()
    repeats: tuple[Plan, ...] = ()
    void: bool = False  # a decisive trial is missing, or made no difference


def prove(basis: Basis, case: Case | None) -> Proof:
    """Judge the basis of a finding by the trials that were run."""
    if isinstance(basis, Ground):
        return Proof(basis.value)
    if case is None:
        return Proof(basis.ground.value)
    base = case.tried(basis.base)
    tried = [(plan, case.tried(plan)) for plan in basis.changed]
    known = [one for _, one in tried if one is not None and one.outcome != "refused"]
    missing = tuple(plan for plan, one in tried if one is None)
    if base is None:
        missing = (basis.base, *missing)
    recovered = next((one for one in known if base is not None and basis.removes(base, one)), None)
    if recovered is None or base is None:
        if known and not missing:
            same = tuple(f"{one.plan}: no difference" for one in known[:2])
            return Proof(Confidence.POSSIBLE, same, void=basis.decisive)
        return Proof(basis.ground.value, (), missing[:1], void=basis.decisive)
    said = f"{recovered.plan}: {_result(recovered)}"
    again = case.repeated(basis.base)
    if again is None:
        return Proof(Confidence.LIKELY, (said,), (), (basis.base,) if basis.repeat else ())
    if is_broad(base.plan, recovered.plan) and not basis.identified:
        return Proof(Confidence.LIKELY, (f"{said}; without the change, the failure returned",))
    if not basis.removes(again, recovered):
        return Proof(Confidence.LIKELY, (said, "without the change, the failure did not return every time"))
    return Proof(Confidence.PROVEN, (f"{said}; without the change, the failure returned",))


def _result(trial: Trial) -> str:
    samples = count(len(trial.samples), "sample")
    if trial.plan.measured:
        return f"{trial.rate:,.0f} samples/s"
    return f"{samples}, nothing failed" if trial.fine and not trial.bad else f"not frozen, {samples}"
