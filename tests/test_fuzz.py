"""Fifteen seconds of `make fuzz`, with the same programs each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import python

RUN = Path(__file__).parent / "fuzz" / "run.py"


@pytest.mark.timeout(400)
def test_fuzz():
    done = python([str(RUN), "--seconds", "15", "--seed", "0"])
    assert done.returncode == 0, done.stdout + done.stderr
