"""A small process that outlives the doctor, to clean up after it if it is killed.

It waits on a pipe whose other end only the doctor holds. The doctor writes down each session that it starts; when the pipe ends
without a goodbye, the warden ends those sessions and removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal

from unjam.doctor.check.processes import kill_session

SESSIONS = "sessions"
GOODBYE = b"goodbye"


class Warden:
    """The doctor's side."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write)
                _stand_watch(read, folder)
            finally:
                os._exit(0)
        os.close(read)

    def note(self, leader: int) -> None:
        """A session was started."""
        note(self._folder, leader)

    def dismiss(self) -> int:
        """All is cleaned up already. Returns the process to wait for."""
        with contextlib.suppress(OSError):
            os.write(self._write, GOODBYE)
        os.close(self._write)
        return self._pid


def note(folder: str, leader: int) -> None:
    """Write down a session that is to be ended with the doctor."""
    with open(f"{folder}/{SESSIONS}", "a", encoding="ascii") as file:
        file.write(f"{leader}\n")


def _stand_watch(read: int, folder: str) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, read)
    os.closerange(read + 1, 4096)
    if os.read(read, len(GOODBYE)) == GOODBYE:
        return
    try:
        with open(f"{folder}/{SESSIONS}", encoding="ascii") as file:
            leaders = sorted({int(line) for line in file})
    except (OSError, ValueError):
        leaders = []
    for leader in leaders:
        kill_session(leader)
    shutil.rmtree(folder, ignore_errors=True)
