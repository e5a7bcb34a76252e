"""What a finding rests on, and the only place that can say "proven".

NOTE [ How a cause is proven ]

A cause is proven by switching it off. A rule names the one change that would remove its cause (a
`Toggle`), and the examination runs the loader with that change. The word follows from what happened:

    proven    the failure went away with a change of nothing but this cause, and came back in
              another run without it
    likely    it went away and was not tried again, or did not come back every time; or the change
              was broad: without workers, or with another start method, much else is different, too;
              or no change could be tried, and all that is known agrees with this cause
    possible  the change made no difference, or only one sign points to this cause
    seen      nothing is inferred: the finding is itself what was observed

A rule says what it rests on (`Ground`) and what would remove it (`Toggle`). It cannot say the word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING

from unjam.doctor.facts.trial import Plan, Trial

if TYPE_CHECKING:
    from unjam.doctor.facts.case import Case


class Confidence(Enum):
    """How sure a finding is."""

    PROVEN = "proven"
    SEEN = "seen"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Severity(Enum):
    """What a finding costs: the run or its results, something less, or nothing yet."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Ground(Enum):
    """What a finding rests on while no change has been tried."""

    OBSERVED = Confidence.SEEN
    AGREES = Confidence.LIKELY
    SUGGESTED = Confidence.POSSIBLE


OBSERVED, AGREES, SUGGESTED = Ground.OBSERVED, Ground.AGREES, Ground.SUGGESTED


def recovers(base: Trial, changed: Trial) -> bool:
    """Whether a failure went away: a frozen loader moves on, any other one finishes."""
    if base.fine and not base.bad:
        return False
    return changed.moved_on if base.outcome == "hung" else changed.fine and not changed.bad


@dataclass(frozen=True, slots=True)
class Toggle:
    """A change that would remove the cause.

    changed: the plans that make it, each in another way; one that works is enough.
    removes: whether the symptom that the first trial shows is gone in the second.
    ground: what the finding rests on until the change was tried.
    decisive: without this trial there is no finding, and none if the change makes no difference.
    repeat: try again without the change. A measured speed is compared once, and stays likely.
    identified: the culprit was seen failing by itself, so that even a broad change says enough.
    """

    base: Plan
    changed: tuple[Plan, ...]
    removes: Callable[[Trial, Trial], bool] = recovers
    ground: Ground = AGREES
    decisive: bool = False
    repeat: bool = True
    identified: bool = False


# parts of a plan that decide which processes there are, and with them much more than one cause
_BROAD = {"workers", "start", "fresh", "in_place"}
_BESIDE = {"seconds", "epochs", "tolerant", "limit"}  # they change no process


def is_broad(base: Plan, changed: Plan) -> bool:
    """Whether a change is not that of one cause alone."""
    differing = {one.name for one in fields(Plan) if getattr(base, one.name) != getattr(changed, one.name)} - _BESIDE
    if differing == {"workers"} and changed.workers and base.workers:
        return False  # another number of the same processes
    return differing <= _BROAD


Basis = Ground | Toggle


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known for a finding: its word, the trials that say so, and those that would say more."""

    confidence: Confidence
    words: tuple[str, ...] = ()
    wants: tuple[Plan, ...] = ()
    repeats: tuple[Plan, ...] = ()
    void: bool = False  # a decisive trial is missing, or made no difference


def prove(basis: Basis, case: Case | None) -> Proof:
    """Judge what a finding rests on by the trials that were run."""
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
    cured = next((one for one in known if base is not None and basis.removes(base, one)), None)
    if cured is None or base is None:
        if known and not missing:
            return Proof(Confidence.POSSIBLE, tuple(_no_difference(known)), void=basis.decisive)
        return Proof(basis.ground.value, (), missing[:1], void=basis.decisive)
    said = f"{cured.plan}: {_went(cured)}"
    again = case.repeated(basis.base)
    if again is None:
        return Proof(Confidence.LIKELY, (said,), (), (basis.base,) if basis.repeat else ())
    if is_broad(base.plan, cured.plan) and not basis.identified:
        return Proof(Confidence.LIKELY, (f"{said}; without the change it came back",))
    if not basis.removes(again, cured):
        return Proof(Confidence.LIKELY, (said, "without the change it did not come back every time"))
    return Proof(Confidence.PROVEN, (f"{said}; without the change it came back",))


def _no_difference(trials: list[Trial]) -> Iterator[str]:
    for one in trials[:2]:
        yield f"{one.plan}: no difference"


def _went(trial: Trial) -> str:
    done = len(trial.samples)
    count = f"{done:,} sample{'s' * (done != 1)}"
    if trial.plan.measured:
        return f"{trial.rate:,.0f} samples/s"
    return f"{count}, nothing failed" if trial.fine and not trial.bad else f"it goes on, {count}"
