"""A minute of `make fuzz`, with the same programs each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "fuzz" / "run.py"


@pytest.mark.timeout(400)
def test_fuzz():
    done = subprocess.run([sys.executable, str(RUN), "--seconds", "60", "--seed", "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
