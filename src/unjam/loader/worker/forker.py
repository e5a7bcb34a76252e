"""A single-threaded process that forks workers on request: the fork server and each template.

It reaps its children and reports each exit status through a pipe whose write end only it holds. It
exits when its parent is gone, and the kernel then kills its children.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unjam.deadlines import LIVENESS_CHECK, SEND_MESSAGE
from unjam.loader.transport.channel import Channel, ChannelClosed, Frame
from unjam.loader.worker.parent_death import ParentWatch, die_with_parent
from unjam.system.proc_files import thread_ids

# Variables that keep libraries from starting a thread on import; workers get the program's own
# values back. This one is for Arrow's allocator: pandas, scikit-learn and datasets import Arrow.
NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a worker. Descriptors: its end of the channel, the parent's stdout and stderr."""

    worker: int


@dataclass(frozen=True, slots=True)
class Forked:
    """A process was forked. Descriptors: its exit status pipe and, if supported, its pidfd."""

    pid: int


@dataclass(frozen=True, slots=True)
class NotForked:
    """The system refused to fork."""

    reason: str


def _refusal(error: OSError) -> NotForked:
    return NotForked(f"{error.strerror} (process, memory or descriptor limit reached)")


class Forker:
    """Forks workers and reaps them. `children`: exit status pipes by pid, kept across an exec."""

    # exit after this many seconds without a child or a request; None: never
    idle: float | None = None
    # the module `worker.main`, which takes long to import
    _worker_main: Any
    # what the workers inherit; None: each gets it with its first message
    _worker_input: Any = None

    def __init__(self, fd: int, message_types: Sequence[type], children: dict[int, int] | None = None) -> None:
        self._control_fd = fd
        self._channel = Channel(socket.socket(fileno=fd), message_types)
        self._children = children or {}
        self._parent = ParentWatch(os.getppid())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Fork and reap until the parent or the channel is gone, or we have been idle too long."""
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        if self._parent.fd is not None:
            poller.register(self._parent.fd, select.POLLIN)
        self._reap()
        used = time.monotonic()
        while not self._channel.closed and self._parent.alive(0):
            poller.poll(LIVENESS_CHECK.milliseconds)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
            self._reap()
            if self._channel.receive() or self._children:
                used = time.monotonic()
            while self._channel.arrived:
                frame = self._channel.arrived.popleft()
                try:
                    self._handle(frame)
                finally:
                    frame.close()
            if self.idle is not None and time.monotonic() - used > self.idle:
                break
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _handle(self, frame: Frame) -> None:
        """Handle one message."""
        raise NotImplementedError

    def _fork_worker(self, frame: Frame, number: int) -> None:
        self._fork(frame, f"unjam-worker-{number}", lambda channel: self._worker_main.run(channel, self._worker_input))

    def _answer(self, message: object, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(ChannelClosed):
            self._channel.deliver(message, SEND_MESSAGE, fds=fds)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pipe = self._children.pop(pid, None)
            if pipe is not None:
                with contextlib.suppress(OSError):
                    os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(pipe)

    def _fork(self, frame: Frame, name: str, run: Callable[[int], None]) -> None:
        """Fork a child that calls `run` with the first descriptor; answer with the result."""
        me = os.getpid()
        pipe: tuple[int, ...] = ()
        try:
            pipe = read, write = os.pipe()
            pid = os.fork()
        except OSError as error:
            for fd in pipe:
                os.close(fd)
            self._answer(_refusal(error))
            return
        if pid == 0:
            self._child(me, frame, (read, write), name, run)
        self._children[pid] = write
        fds = [read]
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                fds.append(os.pidfd_open(pid))
        try:
            self._answer(Forked(pid), fds)
        except OSError as error:  # sending a descriptor needs another one
            os.kill(pid, signal.SIGKILL)
            self._answer(_refusal(error))
        finally:
            for fd in fds:
                os.close(fd)

    def _child(self, parent: int, frame: Frame, pipe: tuple[int, int], name: str, run: Callable[[int], None]) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(parent)
            channel, *output = frame.fds
            for fd in (*pipe, self._control_fd, self._wake, self._waker, *self._children.values()):
                os.close(fd)
            if self._parent.fd is not None:
                os.close(self._parent.fd)
            for standard, fd in zip((1, 2), output, strict=False):
                os.dup2(fd, standard)
                os.close(fd)
            set_process_name(name)
            # No gc.unfreeze(): a gc run over inherited objects would copy their pages into the child.
            run(channel)
            code = 0
        except BaseException:  # noqa: BLE001 - the last frame of this process; the report goes to stderr
            import traceback  # noqa: PLC0415 - only for this report

            traceback.print_exc()
        finally:
            exit_as_child(code)


def count_threads() -> int:
    """Return how many threads this process has."""
    return len(thread_ids("self")) or threading.active_count()  # without /proc we can count only Python's


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name[:15])


def exit_as_child(code: int) -> None:
    """Exit as multiprocessing's children do: run finalisers, flush streams, skip teardown."""
    from multiprocessing import util  # noqa: PLC0415 - only needed at exit

    try:
        util._exit_function()  # type: ignore[attr-defined] # noqa: SLF001 - what BaseProcess._bootstrap calls
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)
