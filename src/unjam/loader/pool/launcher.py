"""How a worker's process comes to be, and what the parent holds of it."""

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

from unjam.errors import CannotStartError
from unjam.loader.engine.deadlines import OBEY_KILL
from unjam.loader.pool import fork_server, open_pools
from unjam.loader.pool.fork_server import ForkClient
from unjam.loader.transport.channel import pair
from unjam.loader.worker import main, parent_death
from unjam.loader.worker.spec import Cargo
from unjam.system.memory import OwnedFd


class ServedProcess:
    """A worker that the fork server forked: no child of this process, but it looks like one."""

    daemon = True

    def __init__(self, worker: int, birth: fork_server.Birth) -> None:
        self.name = f"unjam-worker-{worker}"
        self.pid: int | None = birth.pid
        self._status_fd: OwnedFd | None = OwnedFd(birth.status_fd)
        self._pidfd = None if birth.pidfd is None else OwnedFd(birth.pidfd)
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
        """How it ended, or None while it lives."""
        self._look(0)
        return self._exitcode

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most `timeout` seconds; None waits as long as it lives."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._exitcode is None and (until is None or time.monotonic() < until):
            self._look(OBEY_KILL.seconds if until is None else max(0.0, until - time.monotonic()))
        self._look(0)

    def terminate(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._exitcode is not None or self._owner != os.getpid() or self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)

    def _look(self, seconds: float) -> None:
        if self._status_fd is None or self._exitcode is not None:
            return
        poller = select.poll()
        poller.register(self._status_fd, select.POLLIN)
        if not poller.poll(max(0, int(seconds * 1000))):
            return
        text = os.read(self._status_fd, 64)
        # an empty answer means that the server is gone, and the kernel took its workers along
        self._exitcode = int(text) if text else -int(signal.SIGKILL)
        # the descriptor stays open until the pool has noticed: a number that is free could be another file's by then
        self._pidfd = None

    @property
    def has_ended(self) -> bool:
        """Whether somebody has asked for the exit code and it was there; looks at nothing."""
        return self._exitcode is not None

    def forget(self) -> None:
        """The pool has noticed its end."""
        self._status_fd = self._pidfd = None


class Nursery(Protocol):
    """Starts workers one way or another."""

    # whether the workers take the dataset from this process's memory, as forked ones do
    inherits: bool
    # whether multiprocessing does not know these processes
    adopts: bool

    def deliver(self, workers: list[int]) -> list[tuple[Any, socket.socket]]:
        """Start these workers side by side; a process and the parent's end of its channel for each."""


class ServerNursery:
    """Workers from unjam's own fork server, or from a template of it.

    `template`: gives the template, made anew if it is gone; None for the server itself.
    """

    inherits = False
    adopts = True

    def __init__(self, template: Callable[[], ForkClient] | None = None) -> None:
        self._template = template

    def deliver(self, workers: list[int]) -> list[tuple[Any, socket.socket]]:
        """See `Nursery`."""
        pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            pairs.extend(pair() for _ in workers)
            ends = [(number, theirs.fileno()) for number, (_, theirs) in zip(workers, pairs, strict=True)]
            births = self._fork(ends)
        except BaseException:
            for mine, _ in pairs:
                mine.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [
            (ServedProcess(number, birth), mine)
            for number, birth, (mine, _) in zip(workers, births, pairs, strict=True)
        ]

    def _fork(self, ends: list[tuple[int, int]]) -> list[fork_server.Birth]:
        if self._template is None:
            return fork_server.with_server(lambda server: server.fork(ends))
        try:
            return self._template().fork(ends)
        except fork_server.ServerLostError:
            return self._template().fork(ends)


class ContextNursery:
    """Workers started by a multiprocessing context that the user chose."""

    adopts = False

    def __init__(self, context: Any, cargo: Cargo | None) -> None:
        self._context = context
        self._cargo = cargo
        self.inherits = cargo is not None

    def deliver(self, workers: list[int]) -> list[tuple[Any, socket.socket]]:
        """See `Nursery`."""
        born: list[tuple[Any, socket.socket]] = []
        for _ in workers:
            mine, theirs = pair()
            origin = Origin(os.getpid(), by_main_thread=threading.current_thread() is threading.main_thread())
            try:
                process = self._context.Process(
                    target=_enter, args=(theirs, mine if self.inherits else None, self._cargo, origin), daemon=True
                )
                process.start()
            except OSError as error:
                mine.close()
                raise CannotStartError(f"the system would not start a worker: {error}") from error
            finally:
                theirs.close()
            born.append((process, mine))
        return born


class Origin:
    """Which process, and which of its threads, a worker comes from."""

    def __init__(self, pid: int, *, by_main_thread: bool) -> None:
        self.pid = pid
        self.by_main_thread = by_main_thread


def _enter(theirs: socket.socket, mine: socket.socket | None, cargo: Cargo | None, origin: Origin) -> None:
    """The first function of a worker that multiprocessing started."""
    if os.getppid() == origin.pid and origin.by_main_thread:
        parent_death.die_with_parent(origin.pid)
    else:
        parent_death.die_with(origin.pid)
    if mine is not None:
        mine.close()
        open_pools.forget_all()
    main.run(theirs, cargo)
