"""The rules' own programs: the broken one must yield the rule's code, the fixed one must yield nothing.

A tenth of the rules, another one for each commit, and every rule whose file changed; `make corpus` takes all of them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rule_programs import MEASURE, chosen
from support import can_isolate, empty_case, python
from unjam.doctor.facts.loader_description import LoaderDescription
from unjam.doctor.facts.program_facts import WatchedEpoch, WatchedLoader
from unjam.doctor.facts.trial import Place, Plan, Raised, Trial, WorkerMemory
from unjam.doctor.proof import Severity
from unjam.doctor.report import catalogue
from unjam.doctor.rules import IN_TRIALS, RULES, uj306_sample_raises, uj308_fails_only_in_workers, uj705_yields_nothing
from unjam.doctor.rules.uj404_objects_copied_on_read import growth

PROGRAM = Path(__file__).parent / "rule_programs.py"
# what a text looks like whose value was missing, or that quotes torch's wrapping instead of the exception
EMPTY_PLACE = re.compile(
    r"^None$|\(None\)|\b(at|in|of|to|from|by|see|for) None\b|None:\d|^\s*$|``|Caught \w+ in DataLoader worker"
)
# true as well of the same program
ALSO = {"UJ403": {"UJ401", "UJ402"}}


CHECKED, CHOICE = chosen()
EACH = pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.RULE.code, marks=[pytest.mark.alone] if file.RULE.code in MEASURE else [])
        for file in CHECKED
    ],
)


def diagnosis(folder: Path, code: str, kind: str) -> dict:
    out = folder / "said.json"
    done = python([PROGRAM, code, kind, out], timeout=240)
    assert out.exists(), done.stdout + done.stderr
    one = json.loads(out.read_text())
    if "not_here" in one:
        pytest.skip(one["not_here"])  # needs root, or a user namespace
    return one


def alarms(one: dict) -> list[dict]:
    """What the doctor warns of. A rule that measures is not judged beside other tests, whose load it measures too."""
    beside = MEASURE - {file.RULE.code for file in CHECKED}
    return [f for f in one["findings"] if f["severity"] != "note" and f["code"] not in beside]


@pytest.mark.timeout(300)
@EACH
def test_the_broken_program_yields_its_code(file, tmp_path):
    code = file.RULE.code
    if not can_isolate():
        pytest.skip("judges a watched program: needs the right to mount (root, or a user namespace)")
    one = diagnosis(tmp_path, code, "broken")
    codes = [finding["code"] for finding in one["findings"]]
    assert code in codes, (CHOICE, codes, one["trials"])
    mine = next(f for f in one["findings"] if f["code"] == code)
    assert all(mine[field] for field in ("title", "culprit", "help", "evidence"))
    for finding in one["findings"]:
        texts = [finding[field] for field in ("title", "culprit", "help")] + list(finding["evidence"])
        assert not [text for text in texts if EMPTY_PLACE.search(text)]
    others = [f for f in alarms(one) if f["code"] not in {code, *ALSO.get(code, ())}]
    assert not others, CHOICE


@pytest.mark.timeout(300)
@EACH
def test_the_fixed_program_yields_nothing(file, tmp_path):
    one = diagnosis(tmp_path, file.RULE.code, "fixed")
    assert one["loaders"]
    notes = [f for f in one["findings"] if f["severity"] == "note" and f["code"] == file.RULE.code]
    assert alarms(one) + notes == [], (CHOICE, one["trials"])


@pytest.mark.static
def test_pages_copied_once_per_worker_are_not_growth():
    """A worker's first samples come with the pages that any process writes: 70 MB on Python 3.12."""

    def grown(*marks):
        memory = tuple(WorkerMemory(0, samples, megabytes << 20) for samples, megabytes in marks)
        return growth(Trial(Plan(1), "finished", 1.0, memory=memory))

    assert grown((1, 9), (17, 79)) == 0
    assert grown((1, 9), (17, 79), (117, 79)) == 0
    assert grown((1, 9), (17, 79), (117, 179)) == 1 << 20


@pytest.mark.static
def test_an_already_read_stream_is_not_called_empty():
    """The trials come after the program: a pipe that it has read to its end gives them nothing."""
    case = empty_case(iterable=True, length=None)
    case.trials = [Trial(Plan(0, tolerant=True), "finished", 0.1, epochs=(0.02,))]
    assert uj705_yields_nothing.detect(case) is not None
    case.watched_loader = WatchedLoader(0, 1, LoaderDescription(), None, None, [WatchedEpoch(0, batches=100)])
    assert uj705_yields_nothing.detect(case) is None


@pytest.mark.static
def test_an_exception_that_depends_on_the_pid_is_not_blamed_on_the_sample():
    """Every trial is another process than the program, so such a sample fails in all of them."""
    case = empty_case()
    there = Raised("KeyError", "4711", "", Place("data.py", 24), "0", 0, process=4711)
    here = Raised("KeyError", "4722", "", Place("data.py", 24), "0", -1, process=4722)
    case.trials = [
        Trial(Plan(2), "raised", 1.0, there, (there,)),
        Trial(Plan(0, tolerant=True), "finished", 1.0, None, (here,), epochs=(0.1,)),
    ]
    assert uj306_sample_raises.detect(case) is None
    assert "the message contains the worker's own pid" in uj308_fails_only_in_workers.detect(case).title
    # in a container processes have small numbers: one that is named by chance shows nothing
    by_chance = Raised("ValueError", "sample 23 is damaged", "", Place("data.py", 24), "23", 0, process=23)
    elsewhere = Raised("ValueError", "sample 23 is damaged", "", Place("data.py", 24), "23", -1, process=31)
    case.trials = [
        Trial(Plan(2), "raised", 1.0, by_chance, (by_chance,)),
        Trial(Plan(0, tolerant=True), "finished", 1.0, None, (elsewhere,), epochs=(0.1,)),
    ]
    assert uj306_sample_raises.detect(case) is not None
    assert uj308_fails_only_in_workers.detect(case) is None


@pytest.mark.static
@pytest.mark.parametrize("message", ["4711", "no reader of process 4711", "/tmp/index_4711.bin"])
def test_a_pid_is_recognised_in_a_message(message):
    """Programs name files and keys by it, in whatever way."""
    assert Raised("KeyError", message, "", process=4711).names_process
    assert not Raised("KeyError", message, "", process=711).names_process


@pytest.mark.static
def test_the_catalogue_is_complete():
    codes = [file.RULE.code for file in RULES]
    assert len(codes) == len(set(codes)) >= 30
    assert codes == sorted(codes)
    assert len({file.RULE.name for file in RULES}) == len(codes)
    for file in RULES:
        title, sections = catalogue.sections(file)
        assert title.endswith(".")
        assert tuple(sections) == catalogue.HEADINGS, file.RULE.code
        assert all(len(text) > 10 for text in sections.values()), file.RULE.code
        assert file.__name__.rpartition(".")[2].startswith(file.RULE.code.lower())
        assert isinstance(file.RULE.severity, Severity)


@pytest.mark.static
def test_detectors_find_nothing_in_an_empty_case():
    for detect in IN_TRIALS:
        assert detect(empty_case()) is None, detect.__module__
