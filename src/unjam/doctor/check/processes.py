"""Finds, measures and ends the processes of a program or trial, from outside."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unjam.system.children import reap
from unjam.system.file_owner import HERE
from unjam.system.isolation import view
from unjam.system.proc_files import read_text, stat_fields
from unjam.system.process_table import queueing_time

_SUBREAPER = 36
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def child_command(module: str, *arguments: str) -> list[str]:
    """The command line of an interpreter that runs `main` of one of our modules.

    Unlike `-m`, it imports nothing from the current folder.
    """
    text = (
        f"import sys; sys.path[:] = [*filter(None, sys.path), {os.path.dirname(HERE)!r}]; "
        f"from {module} import main; main(sys.argv[1:])"
    )
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", text, *arguments]  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing does


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, to be able to wait for them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Usage:
    """The resource usage of one process at one moment."""

    pid: int
    cpu: float
    rss: int
    session: int


def _all() -> Iterator[tuple[int, list[str]]]:
    """Every process, with its stat fields after the name: state, parent, group, session, ..."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (fields := stat_fields(name)):
            yield int(name), fields


def session_processes(leader: int) -> list[Usage]:
    """Every living process of a session."""
    return [_usage(pid, fields) for pid, fields in _all() if int(fields[3]) == leader and fields[0] != "Z"]


def _usage(pid: int, fields: list[str]) -> Usage:
    # user and system time are at 11 and 12, resident pages at 21
    cpu = (int(fields[11]) + int(fields[12])) / _TICK
    return Usage(pid, cpu, int(fields[21]) * _PAGE, int(fields[3]))


def seconds_queued(processes: list[Usage]) -> float:
    """The seconds for which the main threads of these processes were ready to run but waited for a processor."""
    return sum(queueing_time(one.pid, one.pid) for one in processes)


def program_processes(base: str) -> list[Usage]:
    """Every living process of the program whose files are in this folder, in any session.

    Such a process was started with the folder's name in its environment, or is in one of its views.
    """
    wanted, found = os.fsencode(base), []
    for pid, fields in _all():
        if fields[0] == "Z" or pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                is_marked = wanted in file.read()
        except OSError:
            continue
        if is_marked or view.is_in(pid, base):
            found.append(_usage(pid, fields))
    return found


def view_processes(base: str, name: str) -> list[Usage]:
    """Every living process in one view of the files."""
    return [_usage(pid, fields) for pid, fields in _all() if fields[0] != "Z" and view.is_in(pid, base, name)]


def kill_program(base: str) -> None:
    """Kill every process of the program whose files are in this folder."""
    _kill_until_gone(lambda: program_processes(base))


def kill_session(leader: int) -> None:
    """Kill and reap every process of a session, including those that start in the meantime."""
    _kill_until_gone(lambda: session_processes(leader))
    _reap(leader)


def _kill_until_gone(find: Callable[[], list[Usage]]) -> None:
    """Kill processes. Helpers that clean up after the program come last: they exit on their own once it has ended."""
    until, late = time.monotonic() + 2, False
    while not late and (alive := find() or find()):  # twice: a process may fork, or be in exec, during the first
        late = time.monotonic() >= until
        others = [one for one in alive if late or not _cleans_up(one.pid)]
        for one in others:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
        for one in others or alive:
            reap(one.pid, 0.2)


def _cleans_up(pid: int) -> bool:
    """Whether a process is multiprocessing's resource tracker, or torch's manager of shared memory."""
    command = read_text(f"/proc/{pid}/cmdline")
    return "multiprocessing.resource_tracker" in command or "torch_shm_manager" in command


def end_session(leader: int, folder: str) -> None:
    """Kill a trial's processes, and remove the folder of their sockets."""
    kill_session(leader)
    base, name = os.path.dirname(os.path.dirname(folder)), os.path.basename(folder)
    _kill_until_gone(lambda: view_processes(base, name))
    with contextlib.suppress(OSError), open(f"{folder}/temporary", encoding="utf-8") as file:
        shutil.rmtree(file.read(), ignore_errors=True)


def _reap(leader: int) -> None:
    """Reap the adopted processes of a session, so that no zombie remains."""
    for pid, fields in _all():
        if fields[0] == "Z" and int(fields[1]) == os.getpid() and int(fields[3]) == leader:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def sweep_shared_memory(pids: set[int]) -> None:
    """Remove the files that a trial's killed torch workers left in /dev/shm."""
    for path in glob.glob("/dev/shm/torch_[0-9]*_*"):
        if path.split("_")[1] in map(str, pids):
            with contextlib.suppress(OSError):
                os.unlink(path)


def pause(seconds: float) -> None:
    """Sleep; no signal handler is needed to wake up."""
    signal.sigtimedwait([], seconds)
