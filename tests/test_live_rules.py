"""The rules that only a running program can show: their own broken and fixed programs, seen by `unjam why`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from run_frozen import look, stop
from unjam.doctor.rules import RULES

LIVE = [file for file in RULES if file.RULE.live]
PROGRAM = "import sys; from torch.utils.data import DataLoader; from unjam.doctor.rules import BY_CODE; getattr(BY_CODE[sys.argv[1]], sys.argv[2])(DataLoader)"


@pytest.fixture(scope="module")
def said() -> dict[tuple[str, str], list[dict]]:
    pairs = [(file.RULE.code, kind) for file in LIVE for kind in ("broken", "fixed")]
    running = {
        pair: subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *pair],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for pair in pairs
    }
    try:
        time.sleep(16)
        with ThreadPoolExecutor(3) as handles:
            seen = list(handles.map(lambda pair: look("", running[pair].pid), pairs))
        return {pair: one.serious for pair, one in zip(pairs, seen, strict=True)}
    finally:
        for process in running.values():
            if process.poll() is None:
                stop(process)
            else:
                os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else process.stdin.close()


@pytest.mark.parametrize("file", LIVE, ids=lambda f: f.RULE.code)
def test_the_broken_program_yields_the_code(file, said):
    assert file.RULE.code in [finding["code"] for finding in said[file.RULE.code, "broken"]]


@pytest.mark.parametrize("file", LIVE, ids=lambda f: f.RULE.code)
def test_the_fixed_program_yields_nothing(file, said):
    assert said[file.RULE.code, "fixed"] == []
