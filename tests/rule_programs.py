"""Checks the rules' own programs: `python tests/rule_programs.py UJ201 UJ202 …` prints a line of JSON for each.

One process does many, because importing torch takes longer than most of them; several processes at once do all of them in the
time that frozen programs spend waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from unjam.doctor.report import catalogue
from unjam.doctor.report.machine import as_json
from unjam.doctor.rules import BY_CODE

BUDGET = 25.0
HURRY = 0.4  # their samples take no time
SHORT = {
    "UJ404": 12.0,
    "UJ408": 12.0,
    "UJ601": 25.0,
    "UJ602": 12.0,
    "UJ605": 14.0,
    "UJ606": 14.0,
}  # seconds to measure in


def diagnose(function, folder: Path, budget: float = BUDGET) -> dict:
    """What the doctor says of one program."""
    if not catalogue.is_script(function):
        import torch.utils.data

        from unjam.doctor.check.command.check import Wishes, check
        from unjam.doctor.check.command.target_process import TargetProcess

        process = TargetProcess.from_function(lambda: function(torch.utils.data.DataLoader))
        return json.loads(as_json(check(process, function.__module__, Wishes(budget, hurry=HURRY)), ""))
    code = function(None)
    path = folder / "program.py"
    path.write_text(code)
    if code.startswith("# notebook"):
        path = folder / "program.ipynb"
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": code}]}))
    if code.startswith("# shm="):
        return _with_small_shm(path, code.splitlines()[0].partition("=")[2])
    from unjam.doctor.check.command.check import Wishes, check_program

    return json.loads(as_json(check_program(str(path), [], Wishes(BUDGET, hurry=HURRY)), ""))


def _with_small_shm(program: Path, size: str) -> dict:
    out = program.with_suffix(".json")
    check = [sys.executable, "-m", "unjam", "check", "--budget", str(BUDGET), "--json", str(out), str(program)]
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    trial = ["unshare", "-m", "sh", "-c", mount, "sh", "true"]
    if subprocess.run(trial, capture_output=True, timeout=20, check=False).returncode:
        return {"not_here": "a mount namespace of one's own is not permitted"}
    subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", *check], capture_output=True, timeout=100, check=False)
    return json.loads(out.read_text())


def main(codes: list[str]) -> None:
    for code in codes:
        for kind in ("broken", "fixed"):
            with tempfile.TemporaryDirectory() as folder:
                said = diagnose(getattr(BY_CODE[code], kind), Path(folder), SHORT.get(code, BUDGET))
            os.write(1, (json.dumps({"code": code, "kind": kind, **said}) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
