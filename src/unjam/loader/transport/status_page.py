"""The page of words that a worker and its parent share.

Each word has one writer at a time and is read and written whole (aligned, 8 bytes), so no lock is needed. The first
words are the heartbeat, written by the worker before every sample; the rest are the slots' words, see
NOTE [ The life of a slot ].
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass

from unjam.system.memory import Mapping

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


# where the words of the heartbeat are
STAGE, BATCH, POSITION, SINCE, STOP, YIELDED, ARMED = range(7)


@dataclass(frozen=True, slots=True)
class Beat:
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


def read_beat(words: memoryview) -> Beat:
    """The heartbeat in a page's words; ValueError for words that are no heartbeat."""
    return Beat(Stage(words[STAGE]), words[BATCH], words[POSITION], words[SINCE], words[YIELDED], bool(words[ARMED]))


class Page:
    """Both sides' view of the shared words."""

    __slots__ = ("words",)

    def __init__(self, fd: int) -> None:
        self.words = Mapping(fd, PAGE_BYTES).view().cast("q")

    # -- heartbeat: the worker writes, the parent reads --------------------------------------------------------------

    def beat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """Say what the worker is about to do."""
        words = self.words
        words[STAGE] = stage
        words[BATCH] = batch
        words[POSITION] = position
        words[SINCE] = time.monotonic_ns()

    def read(self) -> Beat:
        """The worker's last sign of life."""
        return read_beat(self.words)

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
        """Give a filling back; False if the slot has moved on, which would be a bug."""
        if self.words[_SLOTS_AT + slot] != generation << 1 | 1:
            return False
        self.words[_SLOTS_AT + slot] = generation << 1
        return True

    def is_free(self, slot: int) -> bool:
        """Whether nobody holds the slot's last filling."""
        return not self.words[_SLOTS_AT + slot] & 1
