"""A small process that cleans up if the doctor is killed.

It waits on a pipe whose other end only the doctor holds. The doctor records each session that it starts.
If the pipe closes without the final message, the cleanup process kills those sessions and removes the
program's folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal

from unjam.doctor.check.processes import kill_program, kill_session
from unjam.system.isolation.refusals import remove_created
from unjam.system.isolation.view import SHARED

SESSIONS = "sessions"
WATCH_VARIABLE = "UNJAM_WATCH"  # names the folder in every process of a watched program
DISMISSED = b"dismissed"


class CleanupProcess:
    """The doctor's side of the cleanup process."""

    def __init__(self, base: str, folder: str) -> None:
        """base: the folder to remove at the end. folder: the one in it where sessions are recorded."""
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write)
                _wait_for_doctor(read, base, folder)
            finally:
                os._exit(0)
        os.close(read)

    def dismiss(self) -> int:
        """Tell the process that nothing is left to clean up. Returns its pid, which the caller must reap."""
        with contextlib.suppress(OSError):
            os.write(self._write, DISMISSED)
        os.close(self._write)
        return self._pid


def record_session(folder: str, leader: int) -> None:
    """Record a session that must be killed if the doctor is killed."""
    with open(f"{folder}/{SESSIONS}", "a", encoding="ascii") as file:
        file.write(f"{leader}\n")


def _wait_for_doctor(read: int, base: str, folder: str) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, read)
    os.closerange(read + 1, 4096)
    if os.read(read, len(DISMISSED)) == DISMISSED:
        return
    try:
        with open(f"{folder}/{SESSIONS}", encoding="ascii") as file:
            leaders = sorted({int(line) for line in file})
    except (OSError, ValueError):
        leaders = []
    for leader in leaders:
        kill_session(leader)
    remove_program(base)


def remove_program(base: str) -> None:
    """Kill all processes of a program, and remove what it left behind."""
    kill_program(base)
    remove_created(f"{base}/{SHARED}")
    shutil.rmtree(base, ignore_errors=True)
