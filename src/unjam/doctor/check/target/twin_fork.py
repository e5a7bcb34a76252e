"""Forks a twin of a running program at a loader's first iter(), and lets the program go on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import warnings
import zlib
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from unjam.deadlines import GATHER
from unjam.doctor.check.cleanup_process import note
from unjam.doctor.check.target.observer import Observer
from unjam.doctor.check.target.twin import Captured, Snapshot, Twin, moment_of, outside_doctor
from unjam.doctor.facts.trial import Place
from unjam.system.children import reap
from unjam.system.isolation.program_files import ProgramFiles
from unjam.system.memory_limits import available_memory
from unjam.system.private_files import is_own_peer, own_folder

SOCKET = "twins"
# the twin needs this many times the memory of the program, as long as both change it
ROOM = 2


def fork_twin(observer: Observer, loader: Any, made: Place | None, frame: FrameType | None, number: int) -> bool:
    """Fork a twin, unless one of such a loader exists; whether there is one now."""
    folder = observer.folder
    if frame is None or not _room():
        return False
    key = f"{made}|{type(loader.dataset).__qualname__}|{_length(loader.dataset)}|{type(loader.sampler).__name__}|{loader.num_workers}"
    name = f"twin-{zlib.crc32(key.encode()):08x}"
    try:
        with own_folder(folder) as at:
            os.stat(f"{at}/{SOCKET}")
            os.close(os.open(f"{at}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    moment = moment_of([loader], [made], frame, observer.environment)
    parent = os.getpid()
    # the program must not see a child that it did not make
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            observer.stop()
            _become_twin(folder, name, moment, parent, number)
        reap(pid, GATHER.seconds)
        if signal.SIGCHLD not in masked:
            signal.sigtimedwait({signal.SIGCHLD}, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return True


def _become_twin(folder: str, name: str, moment: Any, parent: int, number: int) -> None:
    try:
        with own_folder(folder) as at:
            files = ProgramFiles.load(at)
        snapshot = Snapshot(files, files.snapshot(name))
        if os.fork():
            os._exit(0)
        os.setsid()
        note(folder, os.getpid())
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD):
            with contextlib.suppress(ValueError, OSError):
                signal.signal(one, signal.SIG_IGN if one != signal.SIGCHLD else signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        channel = _connected(folder)
        place = outside_doctor(moment.frame)
        channel.send(Captured(os.getpid(), moment.made[0], place.f_lineno if place else 0, parent, number))
        object.__setattr__(moment, "files", snapshot)
        Twin(moment, channel).serve()
    except BaseException:  # noqa: BLE001 - this process is ours: nothing of it may go on
        import traceback  # noqa: PLC0415 - only here

        with contextlib.suppress(Exception), open(f"{folder}/{name}.error", "w", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(0)


def _connected(folder: str) -> Connection:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with own_folder(folder) as at:
        connection.connect(f"{at}/{SOCKET}")
    if not is_own_peer(connection):
        raise PermissionError("another user listens in the doctor's place")
    return Connection(connection.detach())


def _room() -> bool:
    free = available_memory()
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            own = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return True
    return free is None or free > ROOM * own


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # noqa: BLE001 - it has none
        return None
