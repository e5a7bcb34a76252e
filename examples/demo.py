"""Three small broken programs: first on plain torch, then under `unjam check`. Takes about a minute."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from runner import last_words

PROGRAMS = Path(__file__).parent / "broken"
# (title, program, seconds for plain torch: few if it would hang, many if it ends by itself)
ROWS = [
    ("a lock that a thread holds when the workers are forked", "lock_held_by_thread", 6),
    ("one sample fails, and a handler turns it into None", "swallowed_exception", 30),
    ("one file opened for all workers: torch alone fails only sometimes", "shared_file", 30),
]


def say(text: str = "") -> None:
    print(text, flush=True)


def plain(program: str, limit: int) -> str:
    """The last line that torch prints."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)
        return f"(nothing; killed after {limit} s)"
    return out.strip().splitlines()[-1] if process.returncode == 0 else last_words(err, process.returncode)


def main() -> None:
    begun = time.monotonic()
    line = "-" * min(100, shutil.get_terminal_size((100, 24)).columns)
    say(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for number, (title, name, limit) in enumerate(ROWS, 1):
        program = os.path.relpath(PROGRAMS / f"{name}.py")
        say(f"\n{line}\n{number} of {len(ROWS)}: {title}\n{line}\n")
        say(f"$ python {program}")
        say(plain(program, limit))
        say(f"\n$ unjam check {program}")
        subprocess.run([sys.executable, "-m", "unjam", "check", program], check=False)
    say(f"\n{line}\n{time.monotonic() - begun:.0f} s")
    say("try it on your own program:  .venv/bin/unjam check train.py")
    say("all ten programs, `unjam run` and `unjam tune`:  make demo-all")


if __name__ == "__main__":
    main()
