"""Starts worker processes: through the fork server or with multiprocessing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from unjam.deadlines import SIGKILL_GRACE
from unjam.errors import CannotStartError
from unjam.loader.pool import fork_server, open_pools
from unjam.loader.pool.fork_server import ForkClient
from unjam.loader.transport.channel import pair
from unjam.loader.worker import main, parent_death
from unjam.loader.worker.spec import WorkerInput
from unjam.system.memory import OwnedFd


class ServedProcess:
    """A worker that the fork server forked. It is not our child, but has the interface of a multiprocessing process."""

    daemon = True

    def __init__(self, worker: int, one: fork_server.ForkedWorker) -> None:
        self.name = f"unjam-worker-{worker}"
        self.pid: int | None = one.pid
        self._status_fd: OwnedFd | None = OwnedFd(one.status_fd)
        self._pidfd = None if one.pidfd is None else OwnedFd(one.pidfd)
        self._exitcode: int | None = None
        self._owner = os.getpid()

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
        if self._exitcode is not None or self._owner != os.getpid() or self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)

    def _read_exit_code(self, seconds: float) -> None:
        if self._status_fd is None or self._exitcode is not None:
            return
        poller = select.poll()
        poller.register(self._status_fd, select.POLLIN)
        if not poller.poll(max(0, int(seconds * 1000))):
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

    def forget(self) -> None:
        """Close the descriptors, once the pool has handled the exit."""
        self._status_fd = self._pidfd = None


class Launcher(Protocol):
    """A way to start workers."""

    def launch(self, workers: list[int]) -> list[tuple[Any, socket.socket]]:
        """Start these workers in parallel; return each one's process and our end of its channel."""


class ServerLauncher:
    """Starts workers from unjam's fork server, or from one of its templates.

    `template`: returns the template, a new one if it is gone; None to use the server itself.
    """

    def __init__(self, template: Callable[[], ForkClient] | None = None) -> None:
        self._template = template

    def launch(self, workers: list[int]) -> list[tuple[Any, socket.socket]]:
        """Fork these workers with one request to the server or template."""
        pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            pairs.extend(pair() for _ in workers)
            ends = [(number, theirs.fileno()) for number, (_, theirs) in zip(workers, pairs, strict=True)]
            forked = self._fork(ends)
        except BaseException:
            for mine, _ in pairs:
                mine.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [
            (ServedProcess(number, one), mine) for number, one, (mine, _) in zip(workers, forked, pairs, strict=True)
        ]

    def _fork(self, ends: list[tuple[int, int]]) -> list[fork_server.ForkedWorker]:
        if self._template is None:
            return fork_server.with_server(lambda server: server.fork(ends))
        try:
            return self._template().fork(ends)
        except fork_server.ServerLostError:
            return self._template().fork(ends)


class ContextLauncher:
    """Starts workers with a multiprocessing context, the user's or `fork`.

    `worker_input`: for forked workers, which inherit it from this process's memory.
    """

    def __init__(self, context: Any, worker_input: WorkerInput | None) -> None:
        self._context = context
        self._worker_input = worker_input

    def launch(self, workers: list[int]) -> list[tuple[Any, socket.socket]]:
        """Start these workers one after another."""
        started: list[tuple[Any, socket.socket]] = []
        by_main_thread = threading.current_thread() is threading.main_thread()
        for _ in workers:
            mine, theirs = pair()
            try:
                process = self._context.Process(
                    target=_enter,
                    args=(
                        theirs,
                        None if self._worker_input is None else mine,
                        self._worker_input,
                        os.getpid(),
                        by_main_thread,
                    ),
                    daemon=True,
                )
                process.start()
            except OSError as error:
                mine.close()
                raise CannotStartError(f"the system cannot start a worker: {error}") from error
            finally:
                theirs.close()
            started.append((process, mine))
        return started


def _enter(
    theirs: socket.socket,
    mine: socket.socket | None,
    worker_input: WorkerInput | None,
    parent: int,
    by_main_thread: bool,  # noqa: FBT001 - multiprocessing passes positional arguments
) -> None:
    """Run a worker that multiprocessing started. by_main_thread: the parent's main thread started it."""
    if os.getppid() == parent and by_main_thread:
        parent_death.die_with_parent(parent)
    else:
        parent_death.die_with(parent)
    if mine is not None:
        mine.close()
        open_pools.forget_all()
    main.run(theirs, worker_input)
