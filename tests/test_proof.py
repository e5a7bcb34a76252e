"""The word of a finding follows from the trials that were run, and from nothing else."""

from __future__ import annotations

import pytest

from support import empty_case
from unjam.doctor.facts.trial import Plan, Raised, Sample, Trial
from unjam.doctor.proof import AGREES, OBSERVED, SUGGESTED, Confidence, Toggle, prove

pytestmark = pytest.mark.static

AS_IS = Plan(2, "fork")
CHANGED = AS_IS.changed(reopen=True)


def trial(plan: Plan, outcome: str) -> Trial:
    bad = (Raised("ValueError", "", ""),) if outcome == "raised" else ()
    return Trial(plan, outcome, 1.0, bad=bad, samples=(Sample("0", 0, 0, 0.1, ""),))


def confidence(*trials: Trial, again: Trial | None = None, **options) -> Confidence:
    case = empty_case()
    case.trials = list(trials)
    case.repeats = [again] if again is not None else []
    return prove(Toggle(AS_IS, (CHANGED,), **options), case).confidence


def test_without_a_trial_nothing_is_proven():
    assert [prove(one, None).confidence.value for one in (OBSERVED, AGREES, SUGGESTED)] == [
        "seen",
        "likely",
        "possible",
    ]


@pytest.mark.parametrize("outcome", ["raised", "hung", "died", "memory"])
def test_proven_needs_a_cure_and_a_relapse(outcome):
    failed, fine = trial(AS_IS, outcome), trial(CHANGED, "finished")
    assert confidence(failed, fine, again=trial(AS_IS, outcome)) is Confidence.PROVEN
    assert confidence(failed, fine) is Confidence.LIKELY
    assert confidence(failed, fine, again=trial(AS_IS, "finished")) is Confidence.LIKELY


def test_an_ineffective_change_weakens_the_cause():
    failed = trial(AS_IS, "raised")
    assert confidence(failed, trial(CHANGED, "raised"), again=failed) is Confidence.POSSIBLE


def test_a_refused_trial_changes_nothing():
    failed = trial(AS_IS, "raised")
    assert confidence(failed, trial(CHANGED, "refused")) is Confidence.LIKELY
    assert confidence(failed) is Confidence.LIKELY
    assert confidence() is Confidence.LIKELY


def test_a_program_that_did_not_fail_proves_nothing():
    fine = trial(AS_IS, "finished")
    assert confidence(fine, trial(CHANGED, "finished"), again=fine) is Confidence.POSSIBLE


def test_a_decisive_toggle_without_its_trial_is_void():
    case = empty_case()
    toggle = Toggle(AS_IS, (CHANGED,), decisive=True)
    assert prove(toggle, case).void
    assert prove(toggle, case).wants == (AS_IS,)
    case.trials = [trial(AS_IS, "raised"), trial(CHANGED, "raised")]
    assert prove(toggle, case).void
    case.trials = [trial(AS_IS, "raised"), trial(CHANGED, "finished")]
    assert not prove(toggle, case).void


def test_missing_trials_are_requested_one_at_a_time():
    case = empty_case()
    other = AS_IS.changed(threads=1)
    toggle = Toggle(AS_IS, (CHANGED, other))
    case.trials = [trial(AS_IS, "hung")]
    assert prove(toggle, case).wants == (CHANGED,)
    case.trials.append(trial(CHANGED, "hung"))
    assert prove(toggle, case).wants == (other,)
    case.trials.append(trial(other, "finished"))
    assert prove(toggle, case).wants == ()
    assert prove(toggle, case).repeats == (AS_IS,)


def test_a_frozen_loader_that_raises_instead_has_recovered():
    assert confidence(trial(AS_IS, "hung"), trial(CHANGED, "raised"), again=trial(AS_IS, "hung")) is Confidence.PROVEN


@pytest.mark.parametrize("change", [{"workers": 0, "start": ""}, {"start": "spawn"}, {"fresh": True}])
def test_a_broad_change_proves_nothing_about_one_cause(change):
    """Without workers, or in another kind of process, much else is different too."""
    failed, again = trial(AS_IS, "raised"), trial(AS_IS, "raised")
    broad = AS_IS.changed(**change)
    case = empty_case()
    case.trials, case.repeats = [failed, trial(broad, "finished")], [again]
    assert prove(Toggle(AS_IS, (broad,)), case).confidence is Confidence.LIKELY
    assert prove(Toggle(AS_IS, (broad,), identified=True), case).confidence is Confidence.PROVEN
