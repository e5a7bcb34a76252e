"""Waits for workers to exit and describes their exits."""

from __future__ import annotations

import dataclasses
import select
import signal
import time

from unjam.loader.engine import events as ev
from unjam.loader.engine.actions import Reason
from unjam.loader.pool.protocol import WorkerExit
from unjam.loader.pool.worker_handle import WorkerHandle
from unjam.loader.transport.status_page import Heartbeat, Stage
from unjam.system.memory_limits import oom_kills

_WORKING_ON_BATCH = (Stage.GETITEM, Stage.COLLATE, Stage.PICKLE, Stage.SEND, Stage.RETRYING)


class OomKillCounter:
    """Tells whether the system killed a worker for memory, from the system's count of such kills."""

    def __init__(self) -> None:
        self._seen = oom_kills()

    def reset(self) -> None:
        """Ignore the kills so far; for the start of an epoch."""
        self._seen = oom_kills()

    def killed(self, handle: WorkerHandle) -> str:
        """Return the evidence that a worker was killed for memory; empty if there is none."""
        if handle.process.exitcode != -signal.SIGKILL or handle.killed_at is not None:
            return ""
        before, now = self._seen, oom_kills()
        if before is None or now is None or now.count <= before.count or now.source != before.source:
            return ""
        # count only one kill: another worker may have been killed too
        self._seen = dataclasses.replace(before, count=before.count + 1)
        return f"{now.source} oom_kill {before.count} -> {now.count}"


def wait_for_exits(handles: list[WorkerHandle], seconds: float) -> list[WorkerHandle]:
    """Wait until these workers have exited; return the ones that still run."""
    until = time.monotonic() + seconds
    left = [handle for handle in handles if handle.process.is_alive()]
    while left and time.monotonic() < until:
        poller = select.poll()
        for handle in left:
            poller.register(handle.sentinel, select.POLLIN)
        poller.poll(max(0, int((until - time.monotonic()) * 1000)) + 1)
        left = [handle for handle in left if handle.process.is_alive()]
    return left


def exit_of(handle: WorkerHandle, memory: str) -> WorkerExit:
    """Describe the exit of a worker."""
    return WorkerExit(
        handle.number,
        handle.process.pid,
        handle.process.exitcode,
        handle.page.read(),
        handle.written(),
        memory,
        handle.said_goodbye,
        handle.stop_reason,
    )


def death_of(handle: WorkerHandle, ending: WorkerExit) -> ev.Death:
    """Return a worker's exit as an event for the engine."""
    cause = ev.Cause.MEMORY if ending.memory else ev.Cause.UNKNOWN
    if handle.killed_at is not None:
        cause = ev.Cause.OVERDUE if handle.stop_reason is Reason.OVERDUE else ev.Cause.STOPPED
    return ev.Death(handle.number, *sample_of(ending.heartbeat), cause, prepared=handle.prepared)


def sample_of(heartbeat: Heartbeat) -> tuple[int | None, int]:
    """Return the batch that a worker is making and the position in it; None and -1 if it makes none."""
    batch = heartbeat.batch if heartbeat.stage in _WORKING_ON_BATCH else None
    return batch, heartbeat.position if heartbeat.stage in (Stage.GETITEM, Stage.RETRYING) else -1
