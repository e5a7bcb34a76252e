"""What the doctor says of a rule's own program: `python tests/rule_programs.py UJ201 broken out.json` writes it as JSON into a file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from unjam.doctor.report.machine import as_json
from unjam.doctor.rules import RULES, example

BUDGET = 25.0
TIMEOUT_FACTOR = 0.4  # their samples take no time
SHORT = {
    "UJ404": 12.0,
    "UJ408": 12.0,
    "UJ601": 25.0,
    "UJ602": 12.0,
    "UJ605": 14.0,
    "UJ606": 14.0,
}  # seconds to measure in


# they measure: what else the machine does is measured too, so they run in `make corpus` and when their file changed
MEASURE = {file.RULE.code for file in RULES if file.RULE.code.startswith("UJ6")} | {"UJ404", "UJ408", "UJ410"}


def git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", "-C", os.path.dirname(__file__), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.split() if done.returncode == 0 else []


def only_in_scenes(file) -> bool:
    """Whether the rule's own programs need `unjam why`, because they only end when something outside acts."""
    return hasattr(file, "detect_live") and not (hasattr(file, "detect") or hasattr(file, "detect_program"))


def chosen() -> tuple[list, str]:
    """The rules whose programs are run, and how they were chosen."""
    # the others need a program that runs: test_why_rules; every freeze that a small program can make has a rule of its own
    checked = [file for file in RULES if not only_in_scenes(file) and file.RULE.code != "UJ209"]
    if os.environ.get("UNJAM_RULES") == "all":
        return checked, "all of them"
    seed = os.environ.get("UNJAM_RULES") or next(iter(git("rev-parse", "--short", "HEAD")), "0")
    steady = [file for file in checked if file.RULE.code not in MEASURE]
    tenth = {file.RULE.code for file in random.Random(seed).sample(steady, len(checked) // 10)}
    names = git("diff", "--name-only", "HEAD~1", "--", "../src/unjam/doctor/rules")
    changed = {Path(name).name[:5].upper() for name in names}
    return [file for file in checked if file.RULE.code in tenth | changed], f"UNJAM_RULES={seed}"


def diagnose(program: Path, folder: Path, budget: float = BUDGET) -> dict:
    """What the doctor says of one program."""
    code = program.read_text()
    path = folder / "program.py"
    path.write_text(code)
    if code.startswith("# notebook"):
        path = folder / "program.ipynb"
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": code}]}))
    if code.startswith("# shm="):
        return _with_small_shm(path, code.splitlines()[0].partition("=")[2])
    from unjam.doctor.check.command.check import CheckOptions, check_program

    return json.loads(as_json(check_program(str(path), [], CheckOptions(budget, timeout_factor=TIMEOUT_FACTOR)), ""))


def _with_small_shm(program: Path, size: str) -> dict:
    out = program.with_suffix(".json")
    check = [sys.executable, "-m", "unjam", "check", "--budget", str(BUDGET), "--json", str(out), str(program)]
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    trial = ["unshare", "-m", "sh", "-c", mount, "sh", "true"]
    if subprocess.run(trial, capture_output=True, timeout=20, check=False).returncode:
        return {"not_here": "a mount namespace of one's own is not permitted"}
    subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", *check], capture_output=True, timeout=100, check=False)
    return json.loads(out.read_text())


def main(code: str, kind: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        said = diagnose(example(code, kind), Path(folder), SHORT.get(code, BUDGET))
    Path(out).write_text(json.dumps(said))  # the program itself may print


if __name__ == "__main__":
    main(*sys.argv[1:])
