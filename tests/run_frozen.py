"""Every program of tests/frozen is started, left until it is stuck (or well at work), and shown to `unjam why`.

    python tests/run_frozen.py [-j 3] [--refused] [NAME ...]

Prints one line for each: right or wrong, code, confidence, the line that was named, the seconds that it took. `--refused` takes the right
to read other processes' memory away from the command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from support import python, wait_until

FOLDER = Path(__file__).parent / "frozen"
TRUTH = json.loads((FOLDER / "truth.json").read_text())
# A program is where it is going to stay when its processes have been the same for so many seconds, and each of them has been at rest as
# long or has computed for itself longer than the import of torch takes. Processor time, since on a busy machine an import takes minutes.
AT_REST, COMPUTING = 2.5, 5.0
# a program of which so many processes have ended is well at work: each epoch, or sample, has others
COME_AND_GO = 6
WITHOUT_PTRACE = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]


@dataclass
class Seen:
    """What `why` said of one program."""

    name: str
    findings: list[dict] = field(default_factory=list)
    processes: list[dict] = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    code: int = -1
    seconds: float = 0.0
    said: str = ""

    @property
    def serious(self) -> list[dict]:
        return [one for one in self.findings if one["severity"] != "note"]

    @property
    def right(self) -> bool:
        """The expected code at the expected line; for a healthy one, nothing."""
        truth = TRUTH[self.name]
        if truth["kind"] == "healthy":
            return self.code == 0 and not self.serious
        return any(one["code"] in truth["codes"] and line(one) == truth["line"] for one in self.serious)


def line(finding: dict) -> int | None:
    place = finding["location"]
    return place["line"] if place and Path(place["file"]).parent == FOLDER else None


def start(name: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(FOLDER / name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def settle(process: subprocess.Popen) -> None:
    """Wait until a program is where it is going to stay: stuck, or well at work."""
    began: dict[tuple[int, bool], float] = {}  # since when this process has existed or been stopped
    worked: dict[int, tuple[float, float]] = {}  # the seconds that it has computed, and when that last became more
    gone = 0.0  # when a process was last missed
    missed = 0  # how often

    def is_steady() -> bool:
        nonlocal gone, missed
        assert process.poll() is None, "the program ended"
        now, family = time.monotonic(), _family(process.pid)
        if began.keys() - family.keys():
            gone, missed = now, missed + 1
        for one, used in family.items():
            began.setdefault(one, now)
            if one[0] not in worked or used - worked[one[0]][0] > 0.3:
                worked[one[0]] = used, now
        for one in began.keys() - family.keys():
            del began[one]
        same = now - max(gone, *began.values())
        at_work = [one for one in family if now - worked[one[0]][1] < AT_REST and family[one] < COMPUTING]
        return missed >= COME_AND_GO or (same > AT_REST and not at_work)

    wait_until(is_steady, 120, every=0.1)


def _family(pid: int) -> dict[tuple[int, bool], float]:
    """The processes of a program, whether each is stopped, and the seconds that it has computed."""
    found = {}
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[one.pid, one.status() == psutil.STATUS_STOPPED] = sum(one.cpu_times()[:2])
    return found


def look(name: str, pid: int, before: list[str] | None = None) -> Seen:
    began = time.monotonic()
    words = ["-m", "unjam", "why", str(pid), "--json", "-"]
    if before:
        done = subprocess.run(
            [*before, sys.executable, *words], capture_output=True, text=True, timeout=90, check=False
        )
    else:
        done = python(words)
    took = time.monotonic() - began
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return Seen(name, code=done.returncode, seconds=took, said=done.stderr[-800:])
    return Seen(name, said["findings"], said["processes"], said["environment"], done.returncode, took)


def look_until_found(name: str, pid: int, before: list[str] | None = None) -> Seen:
    """What `why` says of a program that gets stuck, once it finds anything: on a busy machine `settle` may end while it still starts."""
    until = time.monotonic() + 60
    while not (seen := look(name, pid, before)).serious and time.monotonic() < until:
        time.sleep(1)
    return seen


def stop(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself, which `settle` says
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()


def one(name: str, before: list[str] | None = None) -> Seen:
    process = start(name)
    try:
        settle(process)
        return (look if TRUTH[name]["kind"] == "healthy" else look_until_found)(name, process.pid, before)
    finally:
        stop(process)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("-j", type=int, default=3)
    parser.add_argument("--refused", action="store_true")
    asked = parser.parse_args()
    names = [name if name.endswith(".py") else f"{name}.py" for name in asked.names] or sorted(TRUTH)
    before = WITHOUT_PTRACE if asked.refused else None
    right = 0
    slowest = 0.0
    with ThreadPoolExecutor(asked.j) as hands:
        for seen in hands.map(lambda name: one(name, before), names):
            truth = TRUTH[seen.name]
            right += seen.right
            slowest = max(slowest, seen.seconds)
            named = [(f["code"], f["confidence"], line(f)) for f in seen.serious]
            word = "right" if seen.right else "WRONG"
            print(
                f"{word}  {seen.name:32} {truth['kind']:9} {truth['line']!s:5} {named} {seen.seconds:.1f} s", flush=True
            )
            if not seen.right:
                print(f"       {truth['mechanism']} ({truth['note']}) {seen.said}")
                for finding in seen.findings:
                    print(f"       {finding['severity']} {finding['code']} {finding['title']}")
                for process in seen.processes:
                    print(
                        f"       {process['pid']} {process['role']} {process['stage']} {process['waits_for']}",
                        process["stack"][:1],
                    )
    print(f"{right} of {len(names)} right; the slowest answer took {slowest:.1f} s")
    return int(right < len(names))


if __name__ == "__main__":
    sys.exit(main())
