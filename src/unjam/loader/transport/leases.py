"""The parent's side of the arena: slots as memory of batches, given back when the last tensor is gone."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from unjam.loader.transport.status_page import Page
from unjam.system.memory import Mapping

POISON_VARIABLE = "UNJAM_POISON"
POISON = 0xDB


class Leases:
    """The slots of one worker as the parent sees them. See NOTE [ The life of a slot ]."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._mappings: dict[int, Mapping] = {}
        self._live: dict[tuple[int, int], weakref.ref[Any]] = {}
        self._poison = bool(os.environ.get(POISON_VARIABLE))
        self._home = os.getpid()

    def add(self, slot: int, size: int, fd: int) -> None:
        """A worker made a slot."""
        self._mappings[slot] = Mapping(fd, size)

    def retire(self, slot: int) -> None:
        """A worker will not use a slot again; batches that lie in it keep it mapped."""
        self._mappings.pop(slot, None)

    @property
    def held(self) -> int:
        """How many fillings the consumer still refers to."""
        return len(self._live)

    @property
    def held_bytes(self) -> int:
        """The size of the slots that the consumer's batches lie in."""
        return sum(self._mappings[slot].size for slot, _ in list(self._live) if slot in self._mappings)

    @property
    def mapped_bytes(self) -> int:
        """How much memory the arena spans."""
        return sum(mapping.size for mapping in self._mappings.values())

    def borrow(self, slot: int, generation: int) -> Any:
        """The owner of a filling: when the last reference to it is gone, the slot is free again."""
        mapping = self._mappings[slot]
        owner = mapping.owner()
        key = (slot, generation)
        live, page, poison, home = self._live, self._page, self._poison, self._home

        def give_back(_: weakref.ref[Any]) -> None:
            if os.getpid() != home:
                return  # a forked child dropped its copy; the parent's is still there
            if poison:
                ctypes.memset(mapping.address, POISON, mapping.size)
            live.pop(key, None)
            page.free(slot, generation)

        live[key] = weakref.ref(owner, give_back)
        return owner

    def copy_out(self, slot: int, generation: int, used: int) -> bytearray:
        """The filling's bytes in ordinary memory; the slot is free at once."""
        mapping = self._mappings[slot]
        memory = bytearray(used)
        memoryview(memory)[:] = mapping.view()[:used]
        self.refuse(slot, generation)
        return memory

    def refuse(self, slot: int, generation: int) -> None:
        """Give a filling back without looking at it."""
        if os.getpid() != self._home:
            return
        mapping = self._mappings.get(slot)
        if self._poison and mapping is not None:
            ctypes.memset(mapping.address, POISON, mapping.size)
        self._page.free(slot, generation)
