"""Mechanisms are pure: facts that a test makes by hand, and what is said about them."""

from __future__ import annotations

import dataclasses

import pytest

from support import empty_case
from unjam.doctor.explanation import Knowledge
from unjam.doctor.facts.faults import InheritedOutput, LimitChange, Resource, WatchedFailure
from unjam.doctor.facts.loader_description import LoaderDescription
from unjam.doctor.facts.program_facts import (
    HASH,
    SETTING,
    ProgramFacts,
    ResourceUsage,
    WatchedEpoch,
    WatchedLoader,
    WatchedProcess,
)
from unjam.doctor.facts.trial import Place, Plan, Sample, Trial
from unjam.doctor.judge import finding_of
from unjam.doctor.mechanisms import MECHANISMS, explanations
from unjam.doctor.proof import Confidence, Severity
from unjam.doctor.ranking import ranked
from unjam.doctor.rules import BY_CODE, NAMED
from unjam.doctor.rules.rule import Finding

pytestmark = pytest.mark.static
HERE = Place(__file__, 1)


def program(outcome: str = "ended", **facts) -> tuple[ProgramFacts, WatchedLoader]:
    loader = WatchedLoader(1, 10, LoaderDescription(dataset="D", workers=2), HERE, HERE, [WatchedEpoch(0)])
    process = WatchedProcess(10, None, [loader], **facts)
    return ProgramFacts(outcome, 1 if outcome == "failed" else 0, 10.0, [process]), loader


def failure(**fields) -> WatchedFailure:
    known = {
        "stage": "sample",
        "type_name": "ValueError",
        "message": "bad",
        "trace": "",
        "place": HERE,
        "index": "7",
        "worker": 0,
        "loader": 1,
    }
    return WatchedFailure(**{**known, **fields})


def said(watched: ProgramFacts, *cases) -> list[Finding]:
    return [finding_of(one) for one in explanations(Knowledge(watched, cases))]


def test_no_facts_yield_no_findings():
    watched, _ = program()
    assert said(watched) == []
    assert said(dataclasses.replace(watched, outcome="failed")) == []
    assert said(dataclasses.replace(watched, outcome="frozen")) == []


def test_every_explanation_has_a_rule():
    kinds = {
        kind for module in MECHANISMS for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and "culprit" in getattr(kind, "__dataclass_fields__", {})
    }  # fmt: skip
    assert kinds == set(NAMED)


def test_handles_inherited_by_workers_are_found():
    shared = Resource("self.sock", "socket", "socket:[1]", inherited=True)
    watched, _ = program("failed", failures=[failure(reach=(shared,))])
    (found,) = said(watched)
    assert (found.rule.code, found.culprit) == ("UJ501", "self.sock")
    own = dataclasses.replace(shared, inherited=False)
    assert said(program("failed", failures=[failure(reach=(own,))])[0]) == []
    main = failure(reach=(shared,), worker=-1)
    assert said(program("failed", failures=[main])[0]) == []


def test_one_worker_alone_shares_no_file():
    watched, loader = program("failed", failures=[failure(reach=(Resource("f", "file", "/data", inherited=True),))])
    loader.description = dataclasses.replace(loader.description, workers=1)
    assert said(watched) == []


def test_limits_set_by_the_program_are_named_with_their_line():
    too_large = failure(type_name="OSError", errno=27, limits={"RLIMIT_FSIZE": 4096}, stage="collate", index="")
    watched, _ = program("failed", failures=[too_large], limit_changes=[LimitChange("RLIMIT_FSIZE", HERE)])
    (found,) = said(watched)
    assert found.rule.code == "UJ411"
    assert found.location == HERE
    assert "4,096" in found.title


def test_unrelated_errors_are_not_blamed_on_limits():
    watched, _ = program("failed", failures=[failure(type_name="OSError", errno=2, limits={"RLIMIT_FSIZE": 4096})])
    assert said(watched) == []


def test_a_full_file_system_names_the_exhausted_resource():
    full = failure(type_name="OSError", errno=28, full=(("/data", "all 1,000 inodes"),))
    (found,) = said(program("failed", failures=[full])[0])
    assert "inodes" in found.title
    assert found.culprit == "/data"


@pytest.mark.parametrize("uses", [True, False])
def test_hash_seeds_that_differ_in_workers_are_found_when_used(uses):
    watched, loader = program()
    path = SETTING + HASH
    loader.epochs[0].hashes = {path: "1"} if uses else {}
    loader.epochs[0].worker_hashes = {0: {path: "2"}, 1: {path: "3"}}
    case = empty_case(start_method="spawn")
    case.watched_loader = loader
    case.trials = [
        Trial(Plan(2, "spawn"), "finished", 1.0, samples=(Sample("0", 0, 0, 0.1, "b"),)),
        Trial(
            Plan(0, tolerant=True),
            "finished",
            1.0,
            samples=(Sample("0", -1, 0, 0.1, "a"),),
            second_digests={"0": "a"},
        ),
    ]
    codes = [one.rule.code for one in said(watched, case) if one.rule.code == "UJ533"]
    assert codes == (["UJ533"] if uses else [])


def test_harmless_settings_are_not_reported():
    watched, loader = program()
    loader.epochs[0].hashes = {SETTING + "the working folder": "1"}
    loader.epochs[0].worker_hashes = {0: {SETTING + "the working folder": "2"}}
    assert said(watched) == []


def test_two_workers_writing_one_open_file_are_found():
    written = [InheritedOutput("/out.csv", 0, HERE), InheritedOutput("/out.csv", 1, HERE)]
    (found,) = said(program(inherited_outputs=written)[0])
    assert (found.rule.code, found.culprit) == ("UJ537", "out.csv")
    assert said(program(inherited_outputs=written[:1])[0]) == []


def usages(values: list[int], **held) -> list[ResourceUsage]:
    return [
        ResourceUsage(-1, at * 10, value, 100, {name: of(at) for name, of in held.items()})
        for at, value in enumerate(values)
    ]


def test_growing_memory_names_the_list_that_holds_it():
    watched, loader = program()
    loader.epochs[0].usage = usages(
        [(400 + 20 * at) << 20 for at in range(20)],
        records=lambda at: (at * 10, 2_000_000, 0),
        losses=lambda at: (at * 10, 28, 0),
    )
    (found,) = said(watched)
    assert (found.rule.code, found.culprit) == ("UJ410", "records")


def test_a_cache_that_reaches_its_limit_is_not_growth():
    watched, loader = program()
    loader.epochs[0].usage = usages([(400 + min(200, 40 * at)) << 20 for at in range(24)])
    assert said(watched) == []


@pytest.mark.parametrize(("waited", "severity"), [(1.0, None), (3.0, Severity.NOTE), (20.0, Severity.WARNING)])
def test_a_training_that_waits_for_data_is_reported(waited, severity):
    watched, loader = program()
    loader.epochs[0] = WatchedEpoch(0, seconds=waited + 5, waited=waited, loaded=100, loading=waited)
    found = said(watched)
    assert [one.weight for one in found] == ([severity] if severity else [])


def test_the_lines_that_take_the_time_are_named():
    watched, loader = program()
    loader.epochs[0] = WatchedEpoch(0, seconds=25, waited=20, loaded=100, loading=20)
    case = empty_case()
    case.watched_loader = loader
    slow = Place("data.py", 41)
    case.trials = [Trial(Plan(2, "fork"), "finished", 1.0, lines=((slow, 90), (HERE, 10)))]
    (found,) = said(watched, case)
    assert found.location == slow
    assert "90%" in found.title


# -- ranking ---------------------------------------------------------------------------------------


def finding(code: str, basis, **fields) -> Finding:
    return Finding(BY_CODE[code].RULE, code, code, (), basis, "help", **fields)


def test_a_cause_turns_its_symptom_into_evidence():
    from unjam.doctor.proof import AGREES, OBSERVED

    symptom = finding("UJ310", OBSERVED)
    cause = finding("UJ411", AGREES, depth=2, accounts_for=("raised",))
    assert [one.rule.code for one in ranked([symptom, cause], stopped=True)] == ["UJ411"]


def test_a_refuted_explanation_hides_nothing():
    from unjam.doctor.proof import AGREES, SUGGESTED

    place = finding("UJ303", AGREES)
    guess = finding("UJ501", SUGGESTED, depth=2, accounts_for=("raised",))
    assert guess.confidence is Confidence.POSSIBLE
    assert ranked([place, guess], stopped=True)[0].rule.code == "UJ303"


def test_findings_about_other_symptoms_are_kept():
    from unjam.doctor.proof import AGREES, OBSERVED

    cause = finding("UJ411", AGREES, depth=2, accounts_for=("raised",))
    other = finding("UJ521", OBSERVED)
    assert {one.rule.code for one in ranked([cause, other], stopped=True)} == {"UJ411", "UJ521"}


@pytest.mark.parametrize("opened", [HERE, None])
def test_the_help_against_growing_descriptors_is_a_sentence(opened):
    watched, loader = program()
    loader.epochs[0].usage = [
        ResourceUsage(-1, 10 * number, 1 << 20, 20 + 25 * number, opened=opened) for number in range(40)
    ]
    (found,) = said(watched)
    told = f"close the files opened at {HERE}, " if opened else "close what the training process opens, "
    assert found.help.startswith(told)
