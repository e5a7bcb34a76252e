"""The status page: words in memory that a worker and its parent share.

Each word has one writer at a time, and reads and writes are atomic (aligned, 8 bytes), so no lock
is needed. The first words are the heartbeat, which the worker writes before every sample. The rest
are the slots' words, see NOTE [ The life of a slot ].
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass

from unjam.system.memory import MemoryMapping

PAGE_BYTES = 4096
_SLOTS_AT = 64
MOST_SLOTS = PAGE_BYTES // 8 - _SLOTS_AT


class Stage(enum.IntEnum):
    """What a worker is doing."""

    STARTING = 0
    LOADING = 1
    INIT = 2
    IDLE = 3
    GETITEM = 4
    COLLATE = 5
    PICKLE = 6
    SEND = 7
    LEAVING = 8
    ASKING = 9
    RETRYING = 10


# positions of the heartbeat words
STAGE, BATCH, POSITION, SINCE, STOP, YIELDED, ARMED = range(7)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One reading of a worker's heartbeat."""

    stage: Stage
    batch: int
    position: int
    since: int
    yielded: int
    armed: bool

    def seconds(self) -> float:
        """How long the worker has been in this state."""
        return (time.monotonic_ns() - self.since) / 1e9


def read_heartbeat(words: memoryview) -> Heartbeat:
    """Read the heartbeat from a page's words; raise ValueError if they hold none."""
    return Heartbeat(
        Stage(words[STAGE]), words[BATCH], words[POSITION], words[SINCE], words[YIELDED], bool(words[ARMED])
    )


class StatusPage:
    """The shared words, as both sides use them."""

    __slots__ = ("words",)

    def __init__(self, fd: int) -> None:
        self.words = MemoryMapping(fd, PAGE_BYTES).view().cast("q")

    # -- heartbeat: the worker writes, the parent reads --------------------------------------------------------------

    def heartbeat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """Record what the worker does next."""
        words = self.words
        words[STAGE] = stage
        words[BATCH] = batch
        words[POSITION] = position
        words[SINCE] = time.monotonic_ns()

    def read(self) -> Heartbeat:
        """Return the worker's last heartbeat."""
        return read_heartbeat(self.words)

    def ask_to_stop(self) -> None:
        """Tell the worker to leave at its next sample."""
        self.words[STOP] = 1

    @property
    def stop_asked(self) -> bool:
        """Whether the parent wants the worker to leave."""
        return bool(self.words[STOP])

    # -- slots: the worker leases, the parent frees -------------------------------------------------------------------

    def lease(self, slot: int) -> int:
        """Mark a slot as filled and on its way; return the filling's generation."""
        generation = (self.words[_SLOTS_AT + slot] >> 1) + 1
        self.words[_SLOTS_AT + slot] = generation << 1 | 1
        return generation

    def free(self, slot: int, generation: int) -> bool:
        """Free a slot; return False, a bug, if it no longer holds this generation."""
        if self.words[_SLOTS_AT + slot] != generation << 1 | 1:
            return False
        self.words[_SLOTS_AT + slot] = generation << 1
        return True

    def is_free(self, slot: int) -> bool:
        """Return whether the slot's last filling is no longer in use."""
        return not self.words[_SLOTS_AT + slot] & 1
