"""Every rule's own programs: the broken one must yield the rule's code, the fixed one must yield nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch.utils.data

import examples_running
from unjam.doctor.check import check, open_patient
from unjam.doctor.launch import Patient
from unjam.evidence.case import Case
from unjam.report import catalogue
from unjam.rules import RULES, RuleFile
from unjam.rules.rule import Severity

# true as well of the same program
ALSO = {"UJ403": {"UJ401", "UJ402"}}


def diagnose(file: RuleFile, function, tmp_path: Path):
    """Check a rule's program, with little patience: its samples take no time."""
    code = function(torch.utils.data.DataLoader) if catalogue.is_script(function) else None
    if code is None:
        patient = Patient.from_function(lambda: function(torch.utils.data.DataLoader))
        return check(patient, function.__module__, budget=25, hurry=0.4)
    if code.startswith("# notebook"):
        path = tmp_path / "program.ipynb"
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": code}]}))
    else:
        path = tmp_path / "program.py"
        path.write_text(code)
    if code.startswith("# shm="):
        return examples_running.check_with_small_shm(path, code.splitlines()[0].partition("=")[2])
    return check(open_patient(str(path), []), str(path), budget=25, hurry=0.4)


@pytest.mark.parametrize("file", RULES, ids=lambda f: f.RULE.code)
def test_the_broken_program_yields_the_code(file, tmp_path):
    diagnosis = diagnose(file, file.broken, tmp_path)
    codes = [finding.rule.code for finding in diagnosis.findings]
    assert file.RULE.code in codes, (codes, diagnosis.trials)
    mine = next(f for f in diagnosis.findings if f.rule.code == file.RULE.code)
    assert mine.title
    assert mine.culprit
    assert mine.help
    assert mine.evidence
    others = [f for f in diagnosis.serious if f.rule.code not in {file.RULE.code, *ALSO.get(file.RULE.code, ())}]
    assert not others, [(f.rule.code, f.title) for f in others]


@pytest.mark.parametrize("file", RULES, ids=lambda f: f.RULE.code)
def test_the_fixed_program_yields_nothing(file, tmp_path):
    diagnosis = diagnose(file, file.fixed, tmp_path)
    assert diagnosis.cases
    serious = [(f.rule.code, f.title, f.evidence) for f in diagnosis.serious]
    assert not serious, (serious, diagnosis.trials)
    assert file.RULE.code not in [f.rule.code for f in diagnosis.findings]


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
        assert sys.modules[file.detect.__module__].__name__.rpartition(".")[2].startswith(file.RULE.code.lower())
        assert isinstance(file.RULE.severity, Severity)


def test_detectors_say_nothing_of_an_empty_case():
    from unjam.evidence.case import LoaderFacts, World

    loader = LoaderFacts(
        kind="DataLoader", dataset="D", dataset_place=None, iterable=False, length=8, batch_size=4, batched=True, num_workers=2,
        start_method="fork", context_given=False, prefetch_factor=2, timeout=0, pin_memory=False, persistent_workers=False,
        drop_last=False, shuffles=False, sampler="S", sampler_epoch=False, collate="c", default_collate=True, worker_init="",
    )  # fmt: skip
    world = World(
        cpus=2, python="3.11", torch="2", threads=(), native_threads=0, pools=(), accelerator=None, shm_free=1 << 30,
        shm_total=1 << 30, descriptors=1024, descriptors_used=10, memory=1 << 34, temporary="/tmp", interactive=False,
    )  # fmt: skip
    for file in RULES:
        assert file.detect(Case(loader, world)) is None, file.RULE.code
