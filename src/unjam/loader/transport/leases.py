"""The parent's side of the arena: batches lie in slots, freed when the last tensor is gone."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from unjam.loader.transport.status_page import StatusPage
from unjam.system.memory import MemoryMapping

POISON_VARIABLE = "UNJAM_POISON"
POISON = 0xDB


class Leases:
    """The slots of one worker as the parent sees them. See NOTE [ The life of a slot ]."""

    def __init__(self, page: StatusPage) -> None:
        self._page = page
        self._mappings: dict[int, MemoryMapping] = {}
        self._live: dict[tuple[int, int], weakref.ref[Any]] = {}
        self._poison = bool(os.environ.get(POISON_VARIABLE))
        self._owner_pid = os.getpid()

    def add(self, slot: int, size: int, fd: int) -> None:
        """Map a slot that a worker made."""
        self._mappings[slot] = MemoryMapping(fd, size)

    def retire(self, slot: int) -> None:
        """Forget a slot that the worker will not use again; batches in it keep it mapped."""
        self._mappings.pop(slot, None)

    @property
    def held(self) -> int:
        """How many fillings the consumer still refers to."""
        return len(self._live)

    @property
    def held_bytes(self) -> int:
        """The total size of the slots that hold the consumer's batches."""
        mappings = dict(self._mappings)  # another thread may read this
        return sum(mappings[slot].size for slot, _ in list(self._live) if slot in mappings)

    @property
    def mapped_bytes(self) -> int:
        """The total size of all mapped slots."""
        return sum(mapping.size for mapping in list(self._mappings.values()))

    def borrow(self, slot: int, generation: int) -> Any:
        """Return the owner of a filling; the slot is free when the last reference to it is gone."""
        mapping = self._mappings[slot]
        owner = mapping.owner()
        key = (slot, generation)
        live, page, poison, owner_pid = self._live, self._page, self._poison, self._owner_pid

        def give_back(_: weakref.ref[Any]) -> None:
            if os.getpid() != owner_pid:
                return  # a forked child dropped its copy; the parent still has it
            if poison:
                ctypes.memset(mapping.address, POISON, mapping.size)
            live.pop(key, None)
            page.free(slot, generation)

        live[key] = weakref.ref(owner, give_back)
        return owner

    def mapping(self, slot: int) -> MemoryMapping | None:
        """The memory of a slot."""
        return self._mappings.get(slot)

    def copy_of(self, slot: int, used: int) -> bytearray:
        """Return a copy of the filling's bytes in ordinary memory."""
        return bytearray(self._mappings[slot].view()[:used])

    def refuse(self, slot: int, generation: int) -> None:
        """Free a slot without reading its filling."""
        if os.getpid() != self._owner_pid:
            return
        mapping = self._mappings.get(slot)
        if self._poison and mapping is not None:
            ctypes.memset(mapping.address, POISON, mapping.size)
        self._page.free(slot, generation)
