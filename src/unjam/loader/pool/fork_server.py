"""The parent's side of the fork server, which each process starts once, when it is first needed.

It is unjam's own: other code in the process may use multiprocessing's fork server, so we leave that alone.
A process forked from one that has a server starts its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import process, spawn
from typing import TypeVar

from unjam.deadlines import FORK_SERVER_LOCK, FORK_SERVER_REPLY, FORK_SERVER_START, SIGKILL_GRACE, Deadline
from unjam.errors import CannotStartError
from unjam.loader.transport.channel import Channel, ChannelClosed, Frame, pair
from unjam.loader.worker import server
from unjam.loader.worker.forker import Fork, Forked, NotForked
from unjam.loader.worker.thread_limits import thread_environment
from unjam.system.owned_fd import OwnedFd, readable

T = TypeVar("T")


class ForkServerProcess:
    """A worker that the fork server forked. It is not our child, but has the interface of a multiprocessing process."""

    daemon = True

    def __init__(self, worker: int, pid: int, fds: list[int]) -> None:
        """`fds`: the pipe for its exit status and, if supported, its pidfd."""
        self.name = f"unjam-worker-{worker}"
        self.pid: int | None = pid
        self._status_fd: OwnedFd | None = OwnedFd(fds[0])
        self._pidfd = OwnedFd(fds[1]) if len(fds) > 1 else None
        self._exitcode: int | None = None
        self._owner_pid = os.getpid()

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the worker has ended."""
        if self._status_fd is None:
            raise ValueError("the process has ended and its descriptors are closed")
        return self._status_fd

    @property
    def exitcode(self) -> int | None:
        """The exit code, or None while it runs."""
        self._read_exit_code(0)
        return self._exitcode

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it exits, at most `timeout` seconds; None: without limit."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._exitcode is None and (until is None or time.monotonic() < until):
            self._read_exit_code(SIGKILL_GRACE.seconds if until is None else max(0.0, until - time.monotonic()))
        self._read_exit_code(0)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._exitcode is not None or self._owner_pid != os.getpid() or self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)

    def _read_exit_code(self, seconds: float) -> None:
        if self._status_fd is None or self._exitcode is not None:
            return
        if not readable(self._status_fd, seconds):
            return
        text = os.read(self._status_fd, 64)
        # an empty read means that the server died, and the kernel killed its workers
        self._exitcode = int(text) if text else -int(signal.SIGKILL)
        # Keep the status descriptor open until the pool has noticed: its number must not be reused.
        self._pidfd = None

    @property
    def has_ended(self) -> bool:
        """Whether the exit code has been read; does not check the process."""
        return self._exitcode is not None

    def close_descriptors(self) -> None:
        """Close the descriptors, once the pool has handled the exit."""
        self._status_fd = self._pidfd = None


class ServerLostError(CannotStartError):
    """The process that forks workers is gone; retrying with a new one may succeed."""


class ForkClient:
    """The parent's side of a process that forks workers: the fork server, or a template."""

    what = "the fork server"

    def __init__(self, channel: Channel) -> None:
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._channel = channel
        self._unanswered = 0

    @property
    def usable(self) -> bool:
        """Whether this process started it and it still listens."""
        if self._owner_pid == os.getpid() and not self._channel.closed and not self._channel.arrived:
            self._channel.receive()  # to notice the end of the stream
        return self._owner_pid == os.getpid() and not self._channel.closed

    def fork(self, workers: list[tuple[int, int]]) -> list[ForkServerProcess]:
        """Fork a worker for each (number, channel descriptor), in parallel."""
        output = _standard_output()
        with self._exclusive():
            for number, fd in workers:
                self._ask(Fork(number), fds=(fd, *output))
            forked, refused = [], None
            for (number, _), answer in zip(workers, self._answers(len(workers), FORK_SERVER_REPLY), strict=True):
                if isinstance(answer.message, Forked):
                    forked.append(ForkServerProcess(number, answer.message.pid, answer.fds))
                else:
                    refused = answer.message.reason
        if refused is not None:
            forked.clear()  # close their descriptors: the traceback keeps this frame
            raise CannotStartError(f"the system cannot start a worker: {refused}")
        return forked

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=FORK_SERVER_LOCK.seconds):
            raise CannotStartError(f"another thread has been using {self.what} for too long")
        try:
            yield
        except ChannelClosed as error:
            raise self._lost() from error
        finally:
            self._lock.release()

    def _ask(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a request. Each request gets one answer, in order."""
        self._channel.post(message, fds=fds)
        self._unanswered += 1

    def _answers(self, count: int, bound: Deadline) -> list[Frame]:
        """Wait for the answers to the last `count` requests."""
        answers: list[Frame] = []
        until = time.monotonic() + bound.seconds
        while len(answers) < count:
            left = until - time.monotonic()
            if self._channel.closed:
                raise self._lost()
            if left <= 0:
                raise CannotStartError(f"{self.what} did not answer within {bound.seconds:g} s")
            self._channel.flush()
            # wait only briefly while data is unsent: the full socket may have space soon
            self._channel.poll(min(left, 0.05) if self._channel.unsent else left)
            self._channel.receive()
            while self._channel.arrived:
                answer = self._channel.arrived.popleft()
                # an exception (Ctrl-C, a time limit) ended the wait for earlier answers: discard them
                stale = self._unanswered > count - len(answers)
                self._unanswered -= 1
                if stale:
                    answer.close()
                else:
                    answers.append(answer)
        if any(answer.fds_lost for answer in answers):
            for answer in answers:
                answer.close()
            raise CannotStartError("this process has no file descriptors left; raise `ulimit -n` or close some files")
        return answers

    def _lost(self) -> ServerLostError:
        self._channel.close()
        return ServerLostError(f"{self.what} is gone")


class ForkServer(ForkClient):
    """One server process. Use `shared()`."""

    def __init__(self) -> None:
        self._preloaded: set[str] = set()
        mine, theirs = pair()
        with theirs, _interrupts_blocked():
            self._process = subprocess.Popen(
                [os.fsdecode(spawn.get_executable() or sys.executable), *server.command_line(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # set before libraries load, because they read these variables then
                env={**os.environ, **thread_environment(1)},
            )
        super().__init__(Channel(mine, server.MESSAGE_TYPES))
        self._first = True

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether this process started it and it still runs."""
        return self._owner_pid == os.getpid() and not self._channel.closed and self._process.poll() is None

    def preload(self, modules: Iterable[str]) -> None:
        """Import installed modules in the server, in this order, where that is safe."""
        new = tuple(name for name in modules if name not in self._preloaded)
        if not new:
            return
        with self._exclusive():
            self._preloaded.update(new)
            path = tuple(os.path.abspath(entry) for entry in sys.path)
            self._ask(server.Preload(new, path, {**os.environ, **thread_environment(1)}))
            self._answers(1, FORK_SERVER_REPLY)

    def new_template(self, fd: int) -> None:
        """Fork a template that uses the channel descriptor `fd`."""
        with self._exclusive():
            self._ask(server.NewTemplate(), fds=(fd, *_standard_output()))
            answer = self._answers(1, FORK_SERVER_REPLY)[0]
            answer.close()
        if isinstance(answer.message, NotForked):
            raise CannotStartError(f"the system cannot start a process: {answer.message.reason}")

    def shut_down(self) -> None:
        """Stop the server; its workers die with it."""
        if self._owner_pid != os.getpid():
            self._channel.forget()
            self._process.returncode = 0  # not our child: nothing to reap, no warning
            return
        self._channel.close()
        try:
            self._process.wait(SIGKILL_GRACE.seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SIGKILL_GRACE.seconds)

    def _answers(self, count: int, bound: Deadline) -> list[Frame]:
        answers = super()._answers(count, FORK_SERVER_START if self._first else bound)
        self._first = False
        return answers

    def _lost(self) -> ServerLostError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(SIGKILL_GRACE.seconds)
        self._channel.close()
        return ServerLostError(
            f"the fork server exited with status {self._process.returncode}; see its output on stderr"
        )


_current: ForkServer | None = None
_starting = threading.Lock()


def shared() -> ForkServer:
    """Return this process's server; start it if there is none."""
    global _current  # noqa: PLW0603 - one per process
    if _current is not None and _current.usable:
        return _current
    if not _starting.acquire(timeout=FORK_SERVER_LOCK.seconds):
        raise CannotStartError("another thread has been starting the fork server for too long")
    try:
        if _current is None or not _current.usable:
            if _current is not None:
                _current.shut_down()
            _watch_forks()
            _current = ForkServer()
        return _current
    finally:
        _starting.release()


def start_early() -> None:
    """Start the server before it is needed, if there are several processors; do not import torch here."""
    if server_pid() is not None or (os.cpu_count() or 1) < 2 or sys.platform == "win32":
        return
    if process.current_process().daemon:
        return  # a multiprocessing worker: it runs no atexit functions
    # ignore errors: when the server is needed, we try again and report them
    with contextlib.suppress(OSError, CannotStartError):
        shared()
        _shut_down_at_exit()


def with_server(use: Callable[[ForkServer], T]) -> T:
    """Call `use` with this process's server; if the server died, once more with a new one."""
    try:
        return use(shared())
    except ServerLostError:
        return use(shared())


def shut_down() -> None:
    """Stop this process's server, if there is one; the next loader starts a new one."""
    global _current
    if _current is not None:
        server, _current = _current, None
        server.shut_down()


def server_pid() -> int | None:
    """Return the process id of this process's server, if it runs."""
    return _current.pid if _current is not None and _current.usable else None


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT while the server starts.

    Ctrl-C reaches every process of the terminal. The server inherits the block and keeps it until
    it ignores the signal.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork_in_child)


@functools.cache
def _shut_down_at_exit() -> None:
    atexit.register(shut_down)


def _after_fork_in_child() -> None:
    global _starting  # noqa: PLW0603 - another thread may have held it at the fork
    _starting = threading.Lock()


def _standard_output() -> list[int]:
    """Return the current descriptors of stdout and stderr; they may have changed since the server started."""
    try:
        os.fstat(1)
        os.fstat(2)
    except OSError:
        return []
    return [1, 2]
