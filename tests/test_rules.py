"""Every rule's own programs: the broken one must yield the rule's code, the fixed one must yield nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unjam.doctor.facts.case import Case, LoaderFacts, ProcessFacts
from unjam.doctor.report import catalogue
from unjam.doctor.rules import RULES
from unjam.doctor.rules.rule import Severity

# the others need a program that runs: test_live_rules
CHECKED = [file for file in RULES if not file.RULE.live]
PROGRAM = Path(__file__).parent / "rule_programs.py"
# measured with all processors: they run when nothing else does, `make test` calls pytest a second time for them
TIMED = {"UJ601", "UJ605"}
AT_ONCE = 3
# what a text looks like whose value was missing, or that quotes torch's wrapping instead of the exception
EMPTY_PLACE = re.compile(
    r"^None$|\(None\)|\b(at|in|of|to|from|by|see|for) None\b|None:\d|^\s*$|``|Caught \w+ in DataLoader worker"
)
# true as well of the same program
ALSO = {"UJ403": {"UJ401", "UJ402"}}


@pytest.fixture(scope="module")
def said() -> dict[tuple[str, str], dict]:
    """What the doctor said of every program."""
    quick = [file.RULE.code for file in CHECKED if file.RULE.code not in TIMED]
    processes = [_start(quick[at::AT_ONCE]) for at in range(AT_ONCE)]
    return _by_program([line for process in processes for line in _finish(process)])


@pytest.fixture(scope="module")
def said_alone() -> dict[tuple[str, str], dict]:
    return _by_program(_finish(_start(sorted(TIMED))))


def _by_program(lines: list[str]) -> dict[tuple[str, str], dict]:
    found = [json.loads(line) for line in lines]
    return {(one["code"], one["kind"]): one for one in found}


def _start(codes: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PROGRAM), *codes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen) -> list[str]:
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err[-3000:]
    return out.splitlines()


EACH = pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=[pytest.mark.alone] if file.RULE.code in TIMED else [], id=file.RULE.code)
        for file in CHECKED
    ],
)


def _answer(request, code: str, kind: str) -> dict:
    one = request.getfixturevalue("said_alone" if code in TIMED else "said")[code, kind]
    if "not_here" in one:
        pytest.skip(one["not_here"])  # needs root, or a user namespace
    return one


@pytest.mark.timeout(1500)
@EACH
def test_the_broken_program_yields_the_code(file, request):
    one, code = _answer(request, file.RULE.code, "broken"), file.RULE.code
    codes = [finding["code"] for finding in one["findings"]]
    assert code in codes, (codes, one["trials"])
    mine = next(f for f in one["findings"] if f["code"] == code)
    assert all(mine[field] for field in ("title", "culprit", "help", "evidence"))
    for finding in one["findings"]:
        texts = [finding[field] for field in ("title", "culprit", "help")] + list(finding["evidence"])
        assert not [text for text in texts if EMPTY_PLACE.search(text)]
    others = [f for f in one["findings"] if f["severity"] != "note" and f["code"] not in {code, *ALSO.get(code, ())}]
    assert not others


@pytest.mark.timeout(1500)
@EACH
def test_the_fixed_program_yields_nothing(file, request):
    one = _answer(request, file.RULE.code, "fixed")
    assert one["loaders"]
    assert [f for f in one["findings"] if f["severity"] != "note" or f["code"] == file.RULE.code] == [], one["trials"]


def test_the_catalogue_is_whole():
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


def test_the_pages_are_those_of_the_rules():
    sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
    try:
        import write_rules
    finally:
        sys.path.pop(0)
    for name, text in write_rules.pages().items():
        assert (write_rules.FOLDER / name).read_text() == text, f"{name} is out of date: make docs"


def test_detectors_say_nothing_of_an_empty_case():
    loader = LoaderFacts(
        kind="DataLoader", dataset="D", dataset_place=None, iterable=False, length=8, batch_size=4, num_workers=2,
        start_method="fork", prefetch_factor=2, timeout=0, pins_for_nobody=False, persistent_workers=False,
        drop_last=False, sampler="S", collate="c", default_collate=True, worker_init="",
    )  # fmt: skip
    world = ProcessFacts(
        cpus=2, python="3.11", torch="2", threads=(), native_threads=0, pools=(), accelerator=None, shm_free=1 << 30,
        descriptors=1024, descriptors_used=10, memory=1 << 34, temporary="/tmp", interactive=False,
    )  # fmt: skip
    for file in RULES:
        assert file.detect(Case(loader, world)) is None, file.RULE.code
