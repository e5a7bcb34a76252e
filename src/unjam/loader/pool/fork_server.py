"""The parent's side of the fork server: started once per process, on first need.

It is unjam's own; multiprocessing's fork server, which other code in the process may use, is not touched. A process that
was forked from one that has a server starts its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import process, spawn
from typing import TypeVar

from unjam.errors import CannotStartError
from unjam.loader.engine.deadlines import OBEY_KILL, SERVER_LOCK, SERVER_REPLY, SERVER_START, Deadline
from unjam.loader.transport.channel import Channel, ChannelClosed, Envelope, pair
from unjam.loader.worker import server
from unjam.loader.worker.forker import Fork, Forked, NotForked
from unjam.loader.worker.thread_limits import thread_environment

T = TypeVar("T")


@dataclass(slots=True)
class Birth:
    """A worker just forked: its process number, the pipe its status will come through, its pidfd where there is one."""

    pid: int
    status_fd: int
    pidfd: int | None


class ServerLostError(CannotStartError):
    """The process that forks is gone; a new one may do better."""


class ForkClient:
    """The parent's side of a process that forks workers: the fork server, or a template."""

    what = "the fork server"

    def __init__(self, channel: Channel) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._channel = channel

    @property
    def usable(self) -> bool:
        """Whether this process made it and it still listens."""
        if self._owner == os.getpid() and not self._channel.closed and not self._channel.arrived:
            self._channel.receive()  # nothing comes unasked but the end
        return self._owner == os.getpid() and not self._channel.closed

    def fork(self, workers: list[tuple[int, int]]) -> list[Birth]:
        """Fork a worker for each (number, channel descriptor); they start side by side."""
        output = _standard_output()
        with self._alone():
            for number, fd in workers:
                self._channel.post(Fork(number), fds=(fd, *output))
            births, refused = [], None
            for answer in self._answers(len(workers), SERVER_REPLY):
                if isinstance(answer.message, Forked):
                    births.append(Birth(answer.message.pid, answer.fds[0], next(iter(answer.fds[1:]), None)))
                else:
                    refused = answer.message.reason
        if refused is not None:
            for birth in births:
                let_go(birth)
            raise CannotStartError(f"the system would not start a worker: {refused}")
        return births

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=SERVER_LOCK.seconds):
            raise CannotStartError(f"another thread has been talking to {self.what} for too long")
        try:
            yield
        except ChannelClosed as error:
            raise self._lost() from error
        finally:
            self._lock.release()

    def _answers(self, count: int, bound: Deadline) -> list[Envelope]:
        answers: list[Envelope] = []
        until = time.monotonic() + bound.seconds
        while len(answers) < count:
            left = until - time.monotonic()
            if self._channel.closed:
                raise self._lost()
            if left <= 0:
                raise CannotStartError(f"{self.what} did not answer within {bound.seconds:g} s")
            self._channel.flush()
            # a moment at a time, because a queue that was full may have room now
            self._channel.poll(min(left, 0.05) if self._channel.unsent else left)
            self._channel.receive()
            while self._channel.arrived:
                answers.append(self._channel.arrived.popleft())
        if any(answer.fds_lost for answer in answers):
            for answer in answers:
                answer.close()
            raise CannotStartError("this process has no descriptors left; raise `ulimit -n` or close some files")
        return answers

    def _lost(self) -> ServerLostError:
        self._channel.close()
        return ServerLostError(f"{self.what} is gone")


class ForkServer(ForkClient):
    """One server process. Use `shared()`."""

    def __init__(self) -> None:
        self._refused: set[str] = set()
        self._preloaded: set[str] = set()
        mine, theirs = pair()
        with theirs, _interrupts_blocked():
            self._process = subprocess.Popen(
                [os.fsdecode(spawn.get_executable() or sys.executable), *server.command_line(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # capped before any library is loaded: that is when they read these
                env={**os.environ, **thread_environment(1)},
            )
        super().__init__(Channel(mine, server.LANGUAGE))
        self._first = True

    @property
    def pid(self) -> int:
        """The server's process number."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether this process started it and it still runs."""
        return self._owner == os.getpid() and not self._channel.closed and self._process.poll() is None

    def preload(self, modules: Iterable[str]) -> None:
        """Import installed modules in the server, in this order, where that is safe."""
        new = tuple(name for name in modules if name not in self._preloaded)
        if not new:
            return
        with self._alone():
            self._preloaded.update(new)
            path = tuple(os.path.abspath(entry) for entry in sys.path)
            self._channel.post(server.Preload(new, path, {**os.environ, **thread_environment(1)}))
            answer = self._answers(1, SERVER_REPLY)[0]
            self._refused.update(answer.message.refused)

    def new_template(self, fd: int) -> None:
        """Fork a template, which listens at the other end of a channel."""
        with self._alone():
            self._channel.post(server.NewTemplate(), fds=(fd, *_standard_output()))
            answer = self._answers(1, SERVER_REPLY)[0]
            answer.close()
        if isinstance(answer.message, NotForked):
            raise CannotStartError(f"the system would not start a process: {answer.message.reason}")

    def shut_down(self) -> None:
        """End the server; workers it still has die with it."""
        if self._owner != os.getpid():
            self._channel.forget()
            self._process.returncode = 0  # not this process's child: nothing to reap, nothing to warn of
            return
        self._channel.close()
        try:
            self._process.wait(OBEY_KILL.seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(OBEY_KILL.seconds)

    def _answers(self, count: int, bound: Deadline) -> list[Envelope]:
        answers = super()._answers(count, SERVER_START if self._first else bound)
        self._first = False
        return answers

    def _lost(self) -> ServerLostError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(OBEY_KILL.seconds)
        self._channel.close()
        return ServerLostError(
            f"the fork server ended with status {self._process.returncode}; what it printed above says why"
        )


_current: ForkServer | None = None
_starting = threading.Lock()


def shared() -> ForkServer:
    """This process's server, started if there is none."""
    global _current  # noqa: PLW0603 - one per process is the point
    if _current is not None and _current.usable:
        return _current
    if not _starting.acquire(timeout=SERVER_LOCK.seconds):
        raise CannotStartError("another thread has been starting the fork server for too long")
    try:
        if _current is None or not _current.usable:
            if _current is None:
                os.register_at_fork(after_in_child=_after_fork_in_child)
            else:
                _current.shut_down()
            _current = ForkServer()
        return _current
    finally:
        _starting.release()


def start_early() -> None:
    """Start this process's server before it is needed, where a processor is free for it; imports nothing of torch here."""
    if server_pid() is not None or (os.cpu_count() or 1) < 2 or sys.platform == "win32":
        return
    if process.current_process().daemon:
        return  # a worker of somebody's, which ends without a word
    with contextlib.suppress(OSError, CannotStartError):  # it is tried again, and told, when it is needed
        shared()
        atexit.register(shut_down)


def with_server(use: Callable[[ForkServer], T]) -> T:
    """Use this process's server; if it was killed meanwhile, a new one, once."""
    try:
        return use(shared())
    except ServerLostError:
        return use(shared())


def shut_down() -> None:
    """End this process's server, if there is one; the next loader starts a new one."""
    global _current
    if _current is not None:
        server, _current = _current, None
        server.shut_down()


def server_pid() -> int | None:
    """The process number of this process's server, if it runs."""
    return _current.pid if _current is not None and _current.usable else None


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal; the server blocks it from its first instruction, until it ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    global _starting  # noqa: PLW0603 - another thread may have held it at the fork
    _starting = threading.Lock()


def _standard_output() -> list[int]:
    """The descriptors that print and logging go to now, which may not be those of the server's start."""
    try:
        os.fstat(1)
        os.fstat(2)
    except OSError:
        return []
    return [1, 2]


def let_go(birth: Birth) -> None:
    """Close what is held of a worker that nobody wants."""
    os.close(birth.status_fd)
    if birth.pidfd is not None:
        os.close(birth.pidfd)
