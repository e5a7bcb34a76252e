"""The rules that only a running program can show: their own broken and fixed programs, seen by `unjam why`."""

from __future__ import annotations

import subprocess

import pytest

from rule_programs import only_in_scenes
from run_frozen import look, look_until_found, settle, stop
from support import start_python
from unjam.doctor.rules import RULES, example

LIVE = [file.RULE.code for file in RULES if only_in_scenes(file)]


def seen(code: str, kind: str) -> list[dict]:
    """What `unjam why` says of a rule's program while it runs."""
    quiet = subprocess.DEVNULL
    process = start_python(
        [example(code, kind)],
        warm=False,
        stdin=subprocess.PIPE,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        settle(process)
        return (look if kind == "fixed" else look_until_found)("", process.pid).serious
    finally:
        stop(process)


@pytest.mark.parametrize("code", LIVE)
def test_the_broken_program_yields_its_code(code):
    assert code in [finding["code"] for finding in seen(code, "broken")]


@pytest.mark.parametrize("code", LIVE)
def test_the_fixed_program_yields_nothing(code):
    assert seen(code, "fixed") == []
