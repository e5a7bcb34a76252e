"""Runs a small program on one of the loaders and summarises the outcome."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


@dataclass
class Outcome:
    """The outcome of a program: whether it worked, a short text, and the numbers it measured."""

    ok: bool
    text: str
    facts: dict = field(default_factory=dict)


def run(program: str, loader: str, *arguments: str, small_shm: bool = False, limit: float = 90) -> Outcome:
    command = [sys.executable, "-W", "ignore", str(PROGRAMS / f"{program}.py"), loader, *arguments]
    if small_shm:
        prefix = private_mounts()
        if prefix is None:
            return Outcome(ok=False, text="not permitted here: needs a private mount namespace")
        mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
        command = [*prefix, "sh", "-c", mount, "sh", *command]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)
        return Outcome(ok=False, text=f"hangs (killed after {limit:.0f} s)")
    if process.returncode == 0 and out.strip():
        facts = json.loads(out.strip().splitlines()[-1])
        return Outcome(facts.pop("ok"), facts.pop("text"), facts)
    return Outcome(ok=False, text=last_words(err, process.returncode))


def last_words(err: str, code: int) -> str:
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*$", err, re.MULTILINE)
    words = errors[-1] if errors else (err.strip().splitlines() or [f"exit code {code}"])[-1]
    words = re.sub(r"\s+", " ", words)
    return words if len(words) <= 110 else words[:107] + "..."


@functools.cache
def private_mounts() -> list[str] | None:
    """The command prefix for a private mount namespace, or None."""
    if shutil.which("unshare") is None:
        return None
    for options in (["-m"], ["-r", "-m"]):
        trial = ["unshare", *options, "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
        if subprocess.run(trial, capture_output=True, timeout=20, check=False).returncode == 0:
            return ["unshare", *options]
    return None
