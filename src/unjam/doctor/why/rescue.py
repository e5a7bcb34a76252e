"""Ending one stuck worker, when asked: only of an unjam loader, which starts another and makes its batches again."""

from __future__ import annotations

import os
import signal

from unjam.doctor.facts.scene import Process
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.rules.watching import jams
from unjam.doctor.why.families import Family
from unjam.system.process_table import entry


class CannotRescue(Exception):
    """Nothing was ended; the message says why."""


class Target:
    """One worker that may be ended. The handle stays on this very process, however long the user thinks about it."""

    def __init__(self, worker: Process, handle: int) -> None:
        self.name = worker.name
        self._handle = handle

    def end(self) -> bool:
        """End it; False: it had ended already."""
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            self.close()
        return True

    def close(self) -> None:
        """Let go of it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def stuck_worker(diagnosis: Diagnosis, family: Family) -> Target:
    """The one worker that is stuck, if there is one and its loader can do without it."""
    scene = diagnosis.scene
    assert scene is not None
    held = [jam.process for jam in jams(scene) if jam.process.role == "worker"]
    held += [one for one in scene.workers() if one.threads and one.thread.waiting.kind == "suspended"]
    busy = [
        one
        for one in scene.workers()
        if one.threads and one.thread.computes and one.same_sample and one.doing.stage == "sample"
    ]
    found = held or busy
    if not found:
        raise CannotRescue("no worker is stuck; nothing was ended")
    worker = found[0]
    try:
        handle = os.pidfd_open(worker.pid)
    except OSError as error:
        raise CannotRescue(f"{worker.name} has ended meanwhile; nothing was ended") from error
    # what the handle refers to must be the process that was looked at: numbers are used again
    one = entry(worker.pid)
    seen = next((known for known in (*family.workers, *family.others) if known.pid == worker.pid), None)
    if one is None or seen is None or one.born != seen.born:
        os.close(handle)
        raise CannotRescue(f"{worker.name} has ended meanwhile; nothing was ended")
    if not one.name.startswith("unjam-worker"):
        os.close(handle)
        raise CannotRescue(
            f"{worker.name} belongs to a loader that does not recover from a lost worker; nothing was ended. "
            "unjam's loader does: `unjam run` puts it in the place of torch's"
        )
    return Target(worker, handle)
