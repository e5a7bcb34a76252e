"""The dry run of what workers would share, seen from this process. See NOTE [ Dry run ]."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import select
import stat
import time
from collections.abc import Iterator
from typing import Any

from unjam.engine.deadlines import DRY_RUN, OBEY_KILL
from unjam.errors import CannotStartError
from unjam.pools.births import Nursery
from unjam.pools.hands import BeginFrame, introduce
from unjam.transport.channel import Channel, ChannelClosed
from unjam.worker import main, messages
from unjam.worker.job import failures_from
from unjam.worker.spec import Cargo, WorkerSpec
from unjam.worker.tasting import Tasted


def dry_run(nursery: Nursery, begin: BeginFrame, spec: WorkerSpec, cargo: Cargo) -> Tasted:
    """Start a process like a worker, let it load some samples, and end it."""
    spec = dataclasses.replace(spec, tastes=_indices(cargo.dataset, spec), profile=False)
    with _files_kept_in_place():
        return _run(nursery, begin, spec)


@contextlib.contextmanager
def _files_kept_in_place() -> Iterator[None]:
    """A forked process shares the position of every open file: what it reads would be missing for the workers."""
    places = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError, ValueError):
            fd = int(name)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                places[fd] = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        yield
    finally:
        for fd, place in places.items():
            with contextlib.suppress(OSError):
                if os.lseek(fd, 0, os.SEEK_CUR) != place:
                    os.lseek(fd, place, os.SEEK_SET)


def _run(nursery: Nursery, begin: BeginFrame, spec: WorkerSpec) -> Tasted:
    try:
        ((process, sock),) = nursery.deliver([spec.worker])
    except CannotStartError as error:
        return Tasted(0, f"the dry run could not be started: {error}", {})
    channel = Channel(sock, messages.LANGUAGE)
    try:
        page_fd, stacks_fd = main.make_start_memory()
        try:
            message, fds = begin.frame(spec)
            introduce(channel, message, (page_fd, stacks_fd, *fds))
        finally:
            os.close(page_fd)
            os.close(stacks_fd)
        return _await(process, channel)
    except (OSError, ChannelClosed) as error:
        return Tasted(0, f"the dry run could not be started: {error}", {})
    finally:
        channel.close()
        process.kill()
        process.join(OBEY_KILL.seconds)
        with contextlib.suppress(AttributeError):
            process.forget()


def _await(process: Any, channel: Channel) -> Tasted:
    until = time.monotonic() + DRY_RUN.seconds
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    poller.register(process.sentinel, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if channel.unsent:
            channel.flush()
        poller.poll(min(50.0, left * 1000) if channel.unsent else left * 1000)
        came = channel.receive()
        while channel.arrived:
            envelope = channel.arrived.popleft()
            try:
                if isinstance(envelope.message, messages.DryRun):
                    tasted: Tasted = pickle.loads(envelope.data)
                    return tasted
                if isinstance(envelope.message, messages.Raised):
                    return Tasted(0, f"the dry run's worker could not begin{_why(envelope.data)}", {})
            finally:
                envelope.close()
        if not process.is_alive() and not came:
            return Tasted(0, f"the dry run's process ended with status {process.exitcode}", {})
    return Tasted(0, f"the dry run was not over after {DRY_RUN.seconds:g} s", {})


def _why(data: bytes) -> str:
    with contextlib.suppress(Exception):  # the user's exception, told as well as it can be
        return f": {failures_from(data)[-1].exception}"[:200]
    return ""


def _indices(dataset: Any, spec: WorkerSpec) -> tuple[Any, ...]:
    """Some indices that a dataset should have."""
    if spec.iterable:
        return ()
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError, AttributeError):
        count = 0
    return tuple(dict.fromkeys((0, count // 2, count - 1, count // 3, count // 5))) if count > 0 else (0,)
