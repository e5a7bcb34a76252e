"""The worker's side of the arena: chooses the next slot, and the place of the next bytes in it."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from unjam.loader.transport.channel import ChannelClosed
from unjam.loader.transport.status_page import MOST_SLOTS, StatusPage
from unjam.system.memory import MemoryMapping, PrivateMemory, create

ALIGNMENT = 64
SMALLEST_SLOT = 1 << 20
# A new slot is larger than needed by this factor, so that a slightly larger batch still fits.
HEADROOM = 1.25


@dataclass(slots=True)
class Slot:
    """One piece of recycled memory.

    `alias` is dead when nothing in this process refers to the last filling.
    """

    number: int
    memory: MemoryMapping | PrivateMemory
    alias: weakref.ref[Any] | None = None

    @property
    def shared(self) -> bool:
        """Whether the parent can see this memory."""
        return isinstance(self.memory, MemoryMapping)


@dataclass(frozen=True, slots=True)
class Filling:
    """A filled slot on its way to the parent."""

    slot: int
    generation: int
    used: int

    def __reduce__(self) -> Any:
        return Filling, (self.slot, self.generation, self.used)


class Arena:
    """The slots of one worker, and the filling in progress.

    `announce(slot, size, fd)` tells the parent about a new slot. See NOTE [ The life of a slot ].
    """

    def __init__(self, page: StatusPage, announce: Callable[[int, int, int], None]) -> None:
        self._page = page
        self._announce = announce
        self._slots: list[Slot] = []
        self._numbers = iter(range(MOST_SLOTS))
        self._current: Slot | None = None
        self._outgrown: list[Slot] = []
        self._owner: Any = None
        self._thread = threading.get_ident()
        self._open = False
        self.used = 0
        self.expected = 0
        self.retired: list[int] = []

    def open(self) -> None:
        """Begin a batch."""
        if self._current is not None:
            self.discard()
        self._open = True

    @property
    def usable(self) -> bool:
        """Whether memory may be taken: a batch is in progress and this thread makes it."""
        return self._open and threading.get_ident() == self._thread

    def tensor(self, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return an uninitialised tensor in the slot; None if it does not fit or is empty."""
        count = math.prod(size)
        if count == 0:
            return None
        offset = self._reserve(count * dtype.itemsize)
        if offset is None:
            return None
        return self.at(offset, count, dtype).resize_(size)

    def at(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the memory at `offset` as a flat tensor with its own storage."""
        return torch.frombuffer(self._owner, dtype=dtype, count=count, offset=offset)

    def offset_of(self, address: int, nbytes: int) -> int | None:
        """Return the offset of these bytes in the current filling, or None if not in it."""
        for slot in (self._current, *self._outgrown):
            if slot is not None and slot.memory.address <= address < slot.memory.address + slot.memory.size:
                offset = address - slot.memory.address
                return offset if offset + nbytes <= self.used else None
        return None

    def place(self, nbytes: int) -> int:
        """Reserve `nbytes`; move to a larger slot if needed. Return the offset."""
        offset = self._reserve(nbytes)
        if offset is None:
            self._grow(nbytes)
            offset = self._reserve(nbytes)
            assert offset is not None, "a slot that was made for these bytes has no room for them"
        return offset

    def write(self, data: memoryview) -> int:
        """Copy bytes into the filling; return their offset."""
        offset = self.place(data.nbytes)
        memoryview(self._owner).cast("B")[offset : offset + data.nbytes] = data
        return offset

    def take_bytes(self) -> bytes:
        """Return the filling's bytes, to send through the channel; the slot stays free."""
        data = b"" if self._current is None else bytes(memoryview(self._owner).cast("B")[: self.used])
        self.discard()
        return data

    def read_back(self, slot: int) -> bytes:
        """Return the bytes of a slot that the parent could not map; do not use the slot again."""
        for known in self._slots:
            if known.number == slot:
                self._slots.remove(known)
                return bytes(known.memory.view())
        return b""

    @property
    def shareable(self) -> bool:
        """Whether the current filling lies in memory that the parent can map."""
        return self._current is not None and self._current.shared

    def finish(self) -> Filling:
        """Lease the filled slot to the parent."""
        slot = self._current
        assert slot is not None, "no slot was filled"
        self.expected = max(self.expected, self.used)
        filling = Filling(slot.number, self._page.lease(slot.number), self.used)
        self._reset()
        return filling

    def discard(self) -> None:
        """Drop the filling in progress; its slot stays free."""
        self.expected = max(self.expected, self.used)
        self._reset()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        if self._current is not None and self._owner is not None:  # a signal handler may have interrupted this
            self._current.alias = weakref.ref(self._owner)
        self._owner = None
        self._current = None
        self._outgrown.clear()
        self._open = False
        self.used = 0

    def _reserve(self, nbytes: int) -> int | None:
        if self._current is None:
            self._take(self._acquire(max(nbytes, self.expected)))
        assert self._current is not None
        start = -(-self.used // ALIGNMENT) * ALIGNMENT
        if start + nbytes > self._current.memory.size:
            return None
        self.used = start + nbytes
        return start

    def _take(self, slot: Slot) -> None:
        self._owner = slot.memory.owner()
        self._current = slot

    def _grow(self, nbytes: int) -> None:
        """Continue in a larger slot; copy the bytes so far to the same offsets."""
        old, owner = self._current, self._owner
        assert old is not None
        bigger = self._acquire(max(2 * old.memory.size, self.used + nbytes + ALIGNMENT))
        bigger.memory.view()[: self.used] = memoryview(owner).cast("B")[: self.used]
        # Tensors may still lie in the old slot: keep its alias, and let offset_of search it.
        old.alias = weakref.ref(owner)
        self._outgrown.append(old)
        self._take(bigger)

    def _acquire(self, nbytes: int) -> Slot:
        """Return a free slot of at least `nbytes`, recycled or new; retire smaller free slots."""
        found = None
        for slot in list(self._slots):
            if slot is self._current or slot in self._outgrown or not self._idle(slot):
                continue
            if slot.memory.size >= nbytes:
                found = found or slot
            else:
                self._slots.remove(slot)
                if slot.shared:
                    self.retired.append(slot.number)
        return found or self._create(max(SMALLEST_SLOT, math.ceil(nbytes * HEADROOM)))

    def _idle(self, slot: Slot) -> bool:
        if slot.shared and not self._page.is_free(slot.number):
            return False
        return slot.alias is None or slot.alias() is None

    def _create(self, size: int) -> Slot:
        number = next(self._numbers, None)
        try:
            if number is None:
                raise OSError("no more slot numbers")
            fd = create(size, "slot")
            try:
                memory = MemoryMapping(fd, size)
                self._announce(number, size, fd)
            finally:
                os.close(fd)
        except ChannelClosed:
            raise
        except OSError:
            # No descriptor or no shared memory left: send this batch through the channel.
            return Slot(-1, PrivateMemory(size))
        slot = Slot(number, memory)
        self._slots.append(slot)
        return slot
