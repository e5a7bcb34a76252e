"""What the parent holds for one living worker, and how it gets the worker's stack."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from unjam.deadlines import PROFILE_STACK, STACK_DUMP, Deadline
from unjam.loader.engine.actions import Reason
from unjam.loader.engine.events import Death
from unjam.loader.transport.channel import Channel, ChannelClosed
from unjam.loader.transport.leases import Leases
from unjam.loader.transport.status_page import Stage, StatusPage
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker import main, messages
from unjam.loader.worker.spec import WorkerSpec
from unjam.system.memory import MemoryMapping
from unjam.system.owned_fd import OwnedFd


@dataclass(slots=True)
class WorkerHandle:
    """What the parent holds for one living worker."""

    number: int
    process: Any
    channel: Channel
    page: StatusPage
    stacks: MemoryMapping
    leases: Leases
    sentinel: int
    said_goodbye: bool = False
    prepared: bool = False
    # when it had its dataset, in monotonic nanoseconds; 0: not yet
    ready_at: int = 0
    stop_reason: Reason | None = None
    killed_at: float | None = None
    # its exit, once the pool has seen it
    death: Death | None = None
    stack_read: int = 0
    # only for profiling: a duplicate of the worker's descriptor for stacks, to rewind it
    stacks_fd: OwnedFd | None = None
    # batches whose slot we could not map, until their bytes come through the channel
    without_memory: dict[tuple[int, int], PackedBatch] = field(default_factory=dict)
    unmapped: set[int] = field(default_factory=set)

    def written(self) -> str:
        """Return what the worker's fault handler has written since the last call."""
        data = bytes(self.stacks.view()[self.stack_read :])
        end = data.find(b"\0")
        text = data if end < 0 else data[:end]
        self.stack_read += len(text)
        return text.decode("utf-8", "replace")


def post(handle: WorkerHandle, message: object, data: bytes = b"", fds: tuple[int, ...] = ()) -> None:
    """Send a message to a worker. If it is gone, do nothing: its sentinel reports that."""
    with contextlib.suppress(ChannelClosed, OSError):
        if not handle.channel.closed:
            handle.channel.post(message, data, fds)


def sample_stack(handle: WorkerHandle) -> tuple[Stage, str] | None:
    """Return a busy worker's stage and stack; None if it is idle. The stack may be empty."""
    heartbeat = handle.page.read()
    if heartbeat.stage in (Stage.IDLE, Stage.LEAVING) or not heartbeat.armed or handle.stacks_fd is None:
        return None
    if not _catches(handle.process.pid):
        return None
    if handle.stack_read > main.STACKS_BYTES // 2:
        handle.stacks.view()[:] = bytes(main.STACKS_BYTES)
        os.lseek(handle.stacks_fd, 0, os.SEEK_SET)
        handle.stack_read = 0
    # Wait: a worker that has no processor now answers when it gets one. Without the wait we would
    # miss the workers that compute.
    return heartbeat.stage, _request_stack(handle, PROFILE_STACK, 0.001)


class SetupMessages:
    """Makes the first frame for each worker of a pool."""

    def __init__(self, process_state: Any, payload: Any, tracker: int | None, *, from_fork_server: bool) -> None:
        """`payload`, `tracker`: None if the worker has its input. `process_state`: None if forked from this process."""
        self._process_state = process_state
        self._payload = payload
        self._tracker = tracker
        self._from_fork_server = from_fork_server

    def message(self, spec: WorkerSpec) -> tuple[messages.Setup, tuple[int, ...]]:
        """Return the message, and the descriptors that follow the status page and the stacks."""
        payload, tracker = self._payload, () if self._tracker is None else (self._tracker,)
        manifest, fds = (
            (None, ()) if payload is None else (payload.manifest, (payload.fd, *tracker, *payload.extra_fds))
        )
        return messages.Setup(
            spec, self._process_state, manifest, has_tracker=bool(tracker), from_fork_server=self._from_fork_server
        ), fds


def sentinel_of(process: Any) -> OwnedFd | int:
    """Return a descriptor that becomes readable when the process ends.

    Grandchildren inherit the write end of multiprocessing's own sentinel, a pipe, and keep it open.
    A pidfd reports the process itself.
    """
    if isinstance(process, BaseProcess) and process.pid is not None and hasattr(os, "pidfd_open"):
        return OwnedFd(os.pidfd_open(process.pid))
    sentinel: int = process.sentinel
    return sentinel


def take_stack(handle: WorkerHandle) -> str:
    """Return every thread's Python stack. A C handler writes it, even if C code holds the GIL."""
    if not handle.page.read().armed or not handle.process.is_alive() or not _catches(handle.process.pid):
        return ""
    return _request_stack(handle, STACK_DUMP, 0.005)


def _request_stack(handle: WorkerHandle, within: Deadline, step: float) -> str:
    handle.written()  # discard older text
    with contextlib.suppress(ProcessLookupError):
        os.kill(handle.process.pid, main.STACK_SIGNAL)
    until = time.monotonic() + within.seconds
    text = ""
    end = select.poll()
    end.register(handle.sentinel, select.POLLIN)
    while time.monotonic() < until:
        end.poll(step * 1000)
        more = handle.written()
        text += more
        if text and not more:
            break  # complete
    return text


def _catches(pid: int) -> bool:
    """Whether the worker still has a handler for the signal; without one it would be killed."""
    from unjam.system.process_table import catches_signal  # noqa: PLC0415 - only for stacks

    return sys.platform != "linux" or catches_signal(pid, main.STACK_SIGNAL)
