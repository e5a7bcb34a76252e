"""Kills one stuck worker if the user asks for it.

This is for unjam loaders only: they start a new worker and load its batches again.
"""

from __future__ import annotations

import os
import signal

from unjam.doctor.facts.scene import Process
from unjam.doctor.queries.scenes import blocked_processes
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.why.families import Family
from unjam.system.owned_fd import OwnedFd
from unjam.system.process_table import entry


class CannotRescue(Exception):
    """No worker was killed; the message says why."""


class StuckWorker:
    """One worker that may be killed. The pidfd never refers to another process, unlike a pid."""

    def __init__(self, worker: Process, handle: int) -> None:
        self.name = worker.name
        self._handle = OwnedFd(handle)

    def end(self) -> bool:
        """Kill it; False: it had already exited."""
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def stuck_worker(diagnosis: Diagnosis, family: Family) -> StuckWorker:
    """Return the stuck worker; raise if there is none or its loader cannot recover from a kill."""
    scene = diagnosis.scene
    assert scene is not None
    held = [blocked.process for blocked in blocked_processes(scene) if blocked.process.role == "worker"]
    held += [one for one in scene.workers() if one.threads and one.thread.waiting.kind == "suspended"]
    busy = [
        one
        for one in scene.workers()
        if one.threads and one.thread.computes and one.same_sample and one.activity.stage == "sample"
    ]
    found = held or busy
    if not found:
        raise CannotRescue("no worker is stuck; nothing was killed")
    worker = found[0]
    try:
        target = StuckWorker(worker, os.pidfd_open(worker.pid))
    except OSError as error:
        raise CannotRescue(f"{worker.name} has exited in the meantime; nothing was killed") from error
    # pids are reused: the pidfd must refer to the process that we observed
    one = entry(worker.pid)
    seen = next((known for known in (*family.workers, *family.others) if known.pid == worker.pid), None)
    if one is None or seen is None or one.born != seen.born:
        raise CannotRescue(f"{worker.name} has exited in the meantime; nothing was killed")
    if not one.name.startswith("unjam-worker"):
        raise CannotRescue(
            f"{worker.name} belongs to a loader that does not recover from a lost worker; nothing was killed. "
            "unjam's loader does; `unjam run` uses it instead of torch's"
        )
    return target
