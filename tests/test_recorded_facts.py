"""The judgement of recorded facts: each program of the corpus whose facts are kept gets the verdict that it got when it ran."""

from __future__ import annotations

import json

import pytest

from recorded_facts import FOLDER, facts_of
from run_corpus import HERE, judge
from unjam.doctor.facts.recording import record, replay
from unjam.doctor.judge import all_findings

pytestmark = pytest.mark.static
TRUTH = {entry["program"].rpartition(".")[0]: entry for entry in json.loads((HERE / "truth.json").read_text())}
RECORDED = sorted(FOLDER.glob("*.json"))


def test_recordings_cover_broken_and_healthy_programs():
    kinds = [TRUTH[path.stem]["healthy"] for path in RECORDED]
    assert kinds.count(False) >= 25
    assert kinds.count(True) >= 10


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_facts_yield_the_same_verdict(path):
    entry = TRUTH[path.stem]
    said, verdict, alarm = judge(entry, [one.as_dict() for one in all_findings(*facts_of(path))])
    assert not alarm, said
    assert verdict == "healthy" if entry["healthy"] else not {"missed", "no", "-"} & set(verdict.split()), said


@pytest.mark.parametrize("path", RECORDED[::8], ids=lambda path: path.stem)
def test_facts_round_trip_through_text(path):
    watched, cases = facts_of(path)
    again = replay(json.loads(json.dumps(record(watched, cases))))
    assert again == (watched, cases)
