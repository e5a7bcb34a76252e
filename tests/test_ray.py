"""Workers on a real Ray cluster: `ray_cases.py` runs once, in a process of its own, and each of its tests is one here.

Ray has threads and sockets that the other tests, which count such things, should not meet.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

LONG = "UNJAM_LONG" in os.environ
CASES = Path(__file__).with_name("ray_cases.py")
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'unjam[ray]'"
    ),
    pytest.mark.timeout(1500),
    pytest.mark.alone,  # nodes, agents and workers need all processors
]


def names():
    """The cases that are run: those marked LONG only if UNJAM_LONG is set."""
    cases = [one for one in ast.parse(CASES.read_text()).body if isinstance(one, ast.FunctionDef)]
    return [
        one.name
        for one in cases
        if one.name.startswith("test_") and (LONG or "LONG" not in map(ast.unparse, one.decorator_list))
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By test: what went wrong."""
    report = tmp_path_factory.mktemp("cluster") / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--noconftest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        str(CASES),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1400, check=False)
    if not report.exists():
        return None, done.stdout[-5000:] + done.stderr[-5000:]
    found = {}
    for case in ET.parse(report).iter("testcase"):
        wrong = [one.get("message", "") + "\n" + (one.text or "") for one in case if one.tag in ("failure", "error")]
        found.setdefault(case.get("name").partition("[")[0], []).extend(wrong)
    return found, done.stdout[-5000:]


@pytest.mark.parametrize("name", names())
def test_ray_case(name, results):
    found, output = results
    assert found is not None, output
    assert name in found, output
    assert not found[name], "\n".join(found[name])[-6000:]
