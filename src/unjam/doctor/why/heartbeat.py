"""Reads the status page that an unjam worker shares with its parent, from outside.

This needs no permission to trace the process, only to open its file descriptors.
"""

from __future__ import annotations

import contextlib
import os
import stat

from unjam.doctor.facts.scene import Activity
from unjam.loader.transport.status_page import PAGE_BYTES, Heartbeat, Stage, read_heartbeat
from unjam.system.owned_fd import OwnedFd
from unjam.system.proc_files import descriptors

_STAGES = {
    Stage.STARTING: "start", Stage.LOADING: "start", Stage.INIT: "init", Stage.IDLE: "idle", Stage.GETITEM: "sample",
    Stage.COLLATE: "collate", Stage.PICKLE: "send", Stage.SEND: "send", Stage.LEAVING: "end", Stage.ASKING: "idle",
    Stage.RETRYING: "sample",
}  # fmt: skip


def heartbeat_of(pid: int) -> Heartbeat | None:
    """Return the last heartbeat; None: not an unjam worker, or we may not open its descriptors."""
    with contextlib.suppress(OSError, ValueError):
        for number, target in descriptors(pid).items():
            if target.startswith("/memfd:unjam-page"):
                fd = OwnedFd(os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
                # we read it instead of mapping it: its owner may truncate it at any time
                data = os.pread(fd, PAGE_BYTES, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
                return read_heartbeat(memoryview(data).cast("q")) if len(data) == PAGE_BYTES else None
    return None


def doing_of(heartbeat: Heartbeat, known: Activity, number: int) -> Activity:
    """Return what a worker does, from its heartbeat. The sample index comes from the stack."""
    stage = _STAGES.get(heartbeat.stage, known.stage)
    index = known.index or (
        f"at position {heartbeat.position} of batch {heartbeat.batch}"
        if stage == "sample" and heartbeat.position >= 0
        else ""
    )
    return Activity("unjam", stage, index, number, heartbeat.batch, known.workers)
