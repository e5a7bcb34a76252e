"""Checks every program of tests/corpus and compares the verdict with the truth: `make corpus`, or with names of programs.

Right: a finding with one of the true codes names the culprit. A false alarm: a finding (no note) that is neither the
cause nor listed as tolerated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent / "corpus"
BUDGET = "60"


def command(entry: dict, program: Path, out: Path) -> list[str]:
    check = [sys.executable, "-m", "unjam", "check", "--budget", BUDGET, "--json", str(out), str(program)]
    check += entry.get("argv") or []
    limits = entry.get("limits") or {}
    setup = []
    if "nofile" in limits:
        setup.append(f"ulimit -n {limits['nofile']}")
    if "memory" in limits:
        setup.append(_memory_group(limits["memory"]))
    if "shm" in limits:
        setup.append(f"mount -t tmpfs -o size={limits['shm']} tmpfs /dev/shm")
    if not setup:
        return check
    prefix = ["unshare", "-m"] if "shm" in limits else []
    return [*prefix, "sh", "-c", " && ".join([*setup, 'exec "$@"']), "sh", *check]


def _memory_group(limit: str) -> str:
    """A control group with a limit, where this machine lets us make one."""
    for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = f"{root}/unjam-corpus"
        if os.path.exists(f"{root}/{'memory.limit_in_bytes' if 'limit' in name else 'cgroup.procs'}"):
            return f"mkdir -p {group} && echo {limit} > {group}/{name} && echo $$ > {group}/cgroup.procs"
    return "true"


def judge(entry: dict, findings: list[dict]) -> tuple[str, str, bool]:
    """What was said, whether it is right, and whether there was a false alarm."""
    serious = [f for f in findings if f["severity"] != "note"]
    groups = entry.get("all_of") or ([entry["codes"]] if entry.get("codes") else [])
    allowed = {code for group in groups for code in group} | set(entry.get("tolerated") or ())
    alarms = [f["code"] for f in serious if f["code"] not in allowed]
    decisions = []
    for codes in groups:
        hits = [f for f in findings if f["code"] in codes]
        if not hits:
            decisions.append("missed")
        elif not entry.get("culprit") or any(names(f, word) for f in hits for word in entry["culprit"]):
            decisions.append(max((f["confidence"] for f in hits), key=("possible", "likely", "proven").index))
        else:
            decisions.append("no culprit")
    said = " ".join(f["code"] + ("" if f["severity"] != "note" else "n") for f in findings) or "nothing"
    verdict = "healthy" if not groups and not alarms else " ".join(decisions) or "-"
    return said, verdict, bool(alarms)


def names(finding: dict, word: str) -> bool:
    place = finding["location"] or {}
    text = " ".join(
        [finding["title"], finding["culprit"], *finding["evidence"], finding["help"], f"{place.get('file')}"]
    )
    return word.lower() in text.lower()


def main(wanted: list[str]) -> int:
    truth = json.loads((HERE / "truth.json").read_text())
    rows = [e for e in truth if not wanted or any(w in e["program"] for w in wanted)]
    good = alarms = 0
    took = []
    print(f"{'program':34} {'truth':14} {'said':26} {'verdict':18} {'s':>5}")
    for entry in rows:
        with tempfile.TemporaryDirectory() as folder:
            # a copy, so that what a program writes beside itself does not stay
            program = Path(shutil.copy(HERE / entry["program"], folder))
            out = Path(folder) / "out.json"
            began = time.monotonic()
            done = subprocess.run(
                command(entry, program, out), capture_output=True, text=True, timeout=240, check=False,
                env={**os.environ, **(entry.get("env") or {})},
            )  # fmt: skip
            seconds = time.monotonic() - began
            findings = json.loads(out.read_text())["findings"] if out.exists() else None
        took.append(seconds)
        expected = (
            "healthy" if entry["healthy"] else "+".join("|".join(c) for c in entry.get("all_of") or [entry["codes"]])
        )
        if findings is None:
            print(f"{entry['program']:34} {expected:14} {'-':26} {'no answer':18} {seconds:5.1f}\n{done.stderr[-600:]}")
            continue
        said, verdict, alarm = judge(entry, findings)
        right = verdict == "healthy" or (
            bool(verdict.split()) and all(v in ("proven", "likely", "possible") for v in verdict.split())
        )
        good += right
        alarms += alarm
        mark = "" if right and not alarm else "   <--" + (" false alarm" if alarm else "")
        print(f"{entry['program']:34} {expected:14} {said[:26]:26} {verdict:18} {seconds:5.1f}{mark}", flush=True)
    print(
        f"\nright with the culprit named: {good} of {len(rows)}; false alarms: {alarms}; {sum(took) / max(1, len(took)):.1f} s each"
    )
    return 0 if good >= 0.95 * len(rows) and not alarms else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
