"""Forks a twin of a running program at a loader's first iter(); the program continues."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import traceback
import warnings
import zlib
from dataclasses import replace
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from unjam.deadlines import GATHER_FACTS
from unjam.doctor.check.cleanup_process import record_session
from unjam.doctor.check.target.observer import Observer, length_of
from unjam.doctor.check.target.twin import Capture, FileSnapshot, Twin, TwinReady, capture
from unjam.doctor.facts.trial import Place
from unjam.system.children import reap
from unjam.system.isolation.program_files import ProgramFiles
from unjam.system.limits import resident_bytes
from unjam.system.memory_limits import available_memory
from unjam.system.private_files import is_own_peer, own_folder

SOCKET = "twins"
# the free memory that a twin needs, as a multiple of the program's: both may change all of it
MEMORY_FACTOR = 2


def fork_twin(observer: Observer, loader: Any, made: Place | None, frame: FrameType | None, number: int) -> bool:
    """Fork a twin, unless a similar loader has one. Returns whether it was forked."""
    folder = observer.folder
    if frame is None or not _has_memory():
        return False
    key = f"{made}|{type(loader.dataset).__qualname__}|{length_of(loader.dataset)}|{type(loader.sampler).__name__}|{loader.num_workers}"
    name = f"twin-{zlib.crc32(key.encode()):08x}"
    try:
        with own_folder(folder) as at:
            os.stat(f"{at}/{SOCKET}")
            os.close(os.open(f"{at}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    captured = capture([loader], [made], frame, observer.environment)
    parent = os.getpid()
    # the program must not notice a child that it did not start
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            observer.stop()
            _become_twin(folder, name, captured, parent, number)
        reap(pid, GATHER_FACTS.seconds)
        if signal.SIGCHLD not in masked:
            signal.sigtimedwait({signal.SIGCHLD}, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return True


def _become_twin(folder: str, name: str, captured: Capture, parent: int, number: int) -> None:
    try:
        with own_folder(folder) as at:
            files = ProgramFiles.load(at)
        snapshot = FileSnapshot(files, files.snapshot(name))
        if os.fork():
            os._exit(0)
        os.setsid()
        record_session(folder, os.getpid())
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD):
            with contextlib.suppress(ValueError, OSError):
                signal.signal(one, signal.SIG_IGN if one != signal.SIGCHLD else signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        channel = _connected(folder)
        channel.send(TwinReady(os.getpid(), parent, number))
        Twin(replace(captured, files=snapshot), channel).serve()
    except BaseException:  # noqa: BLE001 - this process must not continue as the program
        with contextlib.suppress(Exception), open(f"{folder}/{name}.error", "w", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(0)


def _connected(folder: str) -> Connection:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with own_folder(folder) as at:
        connection.connect(f"{at}/{SOCKET}")
    if not is_own_peer(connection):
        raise PermissionError("another user's process listens on the doctor's socket")
    return Connection(connection.detach())


def _has_memory() -> bool:
    free = available_memory()
    return free is None or free > MEMORY_FACTOR * resident_bytes()[0]
