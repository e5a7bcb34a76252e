"""Ending one stuck worker, when asked: only of an unjam loader, which starts another and makes its batches again."""

from __future__ import annotations

import os
import signal

from unjam.evidence.scene import Process
from unjam.evidence.table import entry
from unjam.report.diagnosis import Diagnosis
from unjam.rules.watching import jams


class CannotRescue(Exception):
    """Nothing was ended; the message says why."""


def stuck_worker(diagnosis: Diagnosis) -> Process:
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
    one = entry(worker.pid)
    if one is None or not one.name.startswith("unjam-worker"):
        raise CannotRescue(
            f"{worker.name} belongs to a loader that does not recover from a lost worker; nothing was ended. "
            "unjam's loader does: `unjam run` puts it in the place of torch's"
        )
    return worker


def end(worker: Process) -> None:
    """End it."""
    os.kill(worker.pid, signal.SIGKILL)
