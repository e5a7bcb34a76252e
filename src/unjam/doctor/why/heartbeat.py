"""What a worker of unjam's own loader says of itself: the page of words that it shares with its parent, read from outside.

Needs no right to trace the process, only to see its descriptors.
"""

from __future__ import annotations

import os
import stat

from unjam.doctor.facts.scene import Doing
from unjam.loader.transport.status_page import PAGE_BYTES, Beat, Stage, read_beat

_STAGES = {
    Stage.STARTING: "start", Stage.LOADING: "start", Stage.INIT: "init", Stage.IDLE: "idle", Stage.GETITEM: "sample",
    Stage.COLLATE: "collate", Stage.PICKLE: "send", Stage.SEND: "send", Stage.LEAVING: "end", Stage.ASKING: "idle",
    Stage.RETRYING: "sample",
}  # fmt: skip


def beat_of(pid: int) -> Beat | None:
    """The last sign of life of one of unjam's workers; None: it is none, or its descriptors may not be seen."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/memfd:unjam-page"):
                fd = os.open(f"/proc/{pid}/fd/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    # read, not mapped: its owner may make it shorter at any moment
                    data = os.pread(fd, PAGE_BYTES, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
                finally:
                    os.close(fd)
                return read_beat(memoryview(data).cast("q")) if len(data) == PAGE_BYTES else None
    except (OSError, ValueError):
        return None
    return None


def doing_of(beat: Beat, known: Doing, number: int) -> Doing:
    """What it is about, by its own word; the sample's index is the stack's to tell."""
    stage = _STAGES.get(beat.stage, known.stage)
    index = known.index or (
        f"at position {beat.position} of batch {beat.batch}" if stage == "sample" and beat.position >= 0 else ""
    )
    return Doing("unjam", stage, index, number, beat.batch, known.workers, since=beat.seconds())
