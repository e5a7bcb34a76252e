"""The processes of a trial, seen from outside: who belongs to it, what they use, how they end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.system.file_owner import HERE

_SUBREAPER = 36
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def child_command(module: str, *arguments: str) -> list[str]:
    """An interpreter that runs `main` of one of our modules. Nothing is imported from the current folder, as `-m` would."""
    text = (
        f"import sys; sys.path[:] = [*filter(None, sys.path), {os.path.dirname(HERE)!r}]; "
        f"from {module} import main; main(sys.argv[1:])"
    )
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", text, *arguments]  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing does


def adopt_orphans() -> None:
    """Processes left behind by a child become children of this process, which can then wait for them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def reap(pid: int, seconds: float) -> int | None:
    """The exit status of a child once it has ended (negative for a signal), or None if it does not in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        fd = -1
    try:
        if fd >= 0:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            if not poller.poll(int(seconds * 1000)):
                return None
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    finally:
        if fd >= 0:
            os.close(fd)
    return os.waitstatus_to_exitcode(status) if done else None


@dataclass(frozen=True, slots=True)
class Usage:
    """One process of a session at one moment."""

    pid: int
    parent: int
    state: str
    cpu: float
    rss: int


def _all() -> Iterator[tuple[int, list[str]]]:
    """Every process, with the fields of its stat file after the name: state, parent, group, session and so on."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                yield int(name), file.read().rpartition(")")[2].split()
        except OSError:
            continue


def session(leader: int) -> list[Usage]:
    """Every process of a session that lives."""
    found = []
    for pid, fields in _all():
        # user and system time are at 11 and 12, resident pages at 21
        if int(fields[3]) == leader and fields[0] != "Z":
            cpu = (int(fields[11]) + int(fields[12])) / _TICK
            found.append(Usage(pid, int(fields[1]), fields[0], cpu, int(fields[21]) * _PAGE))
    return found


def kill_session(leader: int) -> None:
    """End every process of a session, also those that are born meanwhile, and take their ends."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        alive = session(leader)
        if not alive:
            break
        for one in alive:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
        for one in alive:
            reap(one.pid, 0.2)
    _bury(leader)


def end_session(leader: int, folder: str) -> None:
    """End a trial's processes, and remove the folder that they put their sockets into."""
    kill_session(leader)
    with contextlib.suppress(OSError), open(f"{folder}/temporary", encoding="utf-8") as file:
        shutil.rmtree(file.read(), ignore_errors=True)


def _bury(leader: int) -> None:
    """Take the ends of a session's processes that were adopted, so that none stays as a zombie."""
    for pid, fields in _all():
        if fields[0] == "Z" and int(fields[1]) == os.getpid() and int(fields[3]) == leader:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def sweep_shared_memory(pids: set[int]) -> None:
    """Remove what torch's workers of a trial left in /dev/shm when they were killed while they made it."""
    folder = "/dev/shm"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        parts = name.split("_")
        if len(parts) >= 2 and parts[0] == "torch" and parts[1].isdecimal() and int(parts[1]) in pids:
            with contextlib.suppress(OSError):
                os.unlink(f"{folder}/{name}")


def pause(seconds: float) -> None:
    """Let time pass, without a handler of ours being needed to wake up."""
    signal.sigtimedwait([], seconds)
