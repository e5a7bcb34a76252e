"""Starts worker processes: through the fork server or with multiprocessing."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from unjam.errors import CannotStartError
from unjam.loader.pool import fork_server, pool_registry
from unjam.loader.pool.fork_server import ForkClient, ForkServerProcess
from unjam.loader.transport.channel import pair
from unjam.loader.worker import main, parent_death
from unjam.loader.worker.spec import WorkerInput


class ServerLauncher:
    """Starts workers from unjam's fork server, or from one of its templates.

    `template`: returns the template, a new one if it is gone; None to use the server itself.
    """

    def __init__(self, template: Callable[[], ForkClient] | None = None) -> None:
        self._template = template

    def launch(self, workers: list[int]) -> list[tuple[Any, socket.socket]]:
        """Fork these workers in parallel; return each one's process and our end of its channel."""
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
        return [(process, mine) for process, (mine, _) in zip(forked, pairs, strict=True)]

    def _fork(self, ends: list[tuple[int, int]]) -> list[ForkServerProcess]:
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
        """Start these workers one after another; return as `ServerLauncher` does."""
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


Launcher = ServerLauncher | ContextLauncher


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
        pool_registry.forget_all()
    main.run(theirs, worker_input)
