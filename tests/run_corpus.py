"""Checks every program of tests/corpus and compares the verdict with the truth: `make corpus`, or with names of programs.

    run_corpus.py [--user NUMBER] [--no-mounts] [--no-landlock] [--jobs N] [--json FILE] [--same-as FILE] [--record FOLDER]
        [PROGRAM…]

As another user, or where the kernel refuses mounts: see confine.py. --json writes the findings, and --same-as says
where they differ from those of such a file. --record keeps the facts of each program: see recorded_facts.py.

Right: a finding with one of the true codes names the culprit. A false alarm: a finding (no note) that is neither the
cause nor listed as tolerated.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import confine
import recorded_facts

HERE = Path(__file__).parent / "corpus"
BUDGET = "60"


def command(entry: dict, program: Path, out: Path, options: argparse.Namespace) -> list[str]:
    check = [sys.executable, "-m", "unjam", "check", "--budget", BUDGET, "--json", str(out), str(program)]
    check += entry.get("argv") or []
    if options.user or options.no_mounts or options.no_landlock:
        check = confine.command(
            check, user=options.user, mounts=not options.no_mounts, landlock=not options.no_landlock
        )
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
        group = f"{root}/unjam-corpus-$$"
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
            decisions.append(max((f["confidence"] for f in hits), key=("possible", "likely", "seen", "proven").index))
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


class Answer(NamedTuple):
    """What was said of one program. findings: None if there was no document."""

    entry: dict
    findings: list[dict] | None
    seconds: float
    errors: str


def examine(entry: dict, options: argparse.Namespace) -> Answer:
    """Check a copy of one program, so that what it writes beside itself does not stay."""
    place = {"dir": "/var/tmp"} if options.user else {}
    with tempfile.TemporaryDirectory(**place) as folder:
        program = Path(shutil.copy(HERE / entry["program"], folder))
        out = Path(folder) / "out.json"
        words = command(entry, program, out, options)
        if options.record:
            words[words.index("--json") : words.index("--json")] = ["--evidence", f"{folder}/facts.json"]
        if options.user:
            for path in (folder, program):
                os.chown(path, options.user, options.user)
        environment = {**os.environ, "HOME": folder, **(entry.get("env") or {})} if options.user else {**os.environ, **(entry.get("env") or {})}  # fmt: skip
        began = time.monotonic()
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, env=environment, cwd=folder)  # fmt: skip
            errors = done.stderr
        except subprocess.TimeoutExpired:
            errors = "it took longer than 240 s"
        seconds = time.monotonic() - began
        findings = json.loads(out.read_text()).get("findings") if out.exists() else None
        if options.record and findings is not None:
            recorded_facts.keep(Path(folder, "facts.json").read_text(), entry["program"], folder, Path(options.record))
    return Answer(entry, findings, seconds, errors)


def show(answer: Answer) -> tuple[bool, bool]:
    """Print a line; whether the answer is right, and whether there was a false alarm."""
    entry, seconds = answer.entry, answer.seconds
    expected = "healthy" if entry["healthy"] else "+".join("|".join(c) for c in entry.get("all_of") or [entry["codes"]])
    if answer.findings is None:
        print(f"{entry['program']:34} {expected:14} {'-':26} {'no answer':18} {seconds:5.1f}\n{answer.errors[-600:]}")
        return False, False
    said, verdict, alarm = judge(entry, answer.findings)
    words = verdict.split()
    right = verdict == "healthy" or (bool(words) and all(v in ("proven", "seen", "likely", "possible") for v in words))
    mark = "" if right and not alarm else "   <--" + (" false alarm" if alarm else "")
    print(f"{entry['program']:34} {expected:14} {said[:26]:26} {verdict:18} {seconds:5.1f}{mark}", flush=True)
    return right, alarm


def codes(findings: list[dict] | None) -> list[str]:
    return sorted({one["code"] for one in findings or () if one["severity"] != "note"})


def compare(answers: list[Answer], path: str) -> None:
    """Say which programs got other findings than in an earlier run."""
    known = json.loads(Path(path).read_text())
    same = 0
    for answer in answers:
        before, now = codes(known.get(answer.entry["program"])), codes(answer.findings)
        same += before == now
        if before != now:
            print(
                f"differs: {answer.entry['program']}: {' '.join(before) or 'nothing'} -> {' '.join(now) or 'nothing'}"
            )
    print(f"the same findings as in {os.path.basename(path)}: {same} of {len(answers)}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", type=int, default=0)
    for name in ("--no-mounts", "--no-landlock"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--same-as")
    parser.add_argument("--record")
    parser.add_argument("program", nargs="*")
    options = parser.parse_args(arguments)
    truth = json.loads((HERE / "truth.json").read_text())
    rows = [e for e in truth if not options.program or any(word in e["program"] for word in options.program)]
    print(f"{'program':34} {'truth':14} {'said':26} {'verdict':18} {'s':>5}")
    answers, good, alarms = [], 0, 0
    with ThreadPoolExecutor(options.jobs) as workers:
        for answer in workers.map(lambda entry: examine(entry, options), rows):
            right, alarm = show(answer)
            answers.append(answer)
            good += right
            alarms += alarm
    took = sum(answer.seconds for answer in answers) / max(1, len(answers))
    print(f"\nright with the culprit named: {good} of {len(rows)}; false alarms: {alarms}; {took:.1f} s each")
    if options.json:
        Path(options.json).write_text(json.dumps({one.entry["program"]: one.findings for one in answers}))
    if options.same_as:
        compare(answers, options.same_as)
    return 0 if good >= 0.95 * len(rows) and not alarms else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
