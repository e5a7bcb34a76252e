"""Copies of the program's shared memory at the capture: semaphores, shared values, shared tensors.

Every trial is a fork, so all trials would use the same shared memory: a worker killed while it holds a
lock would leave the lock held for the next trial. So the twin keeps a copy of each shared region. A trial
starts by mapping new memory with that content, which only its processes share, at the same addresses.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

from unjam.system.proc_files import memory_maps

# a larger region is probably a dataset in shared memory, which is only read
LARGEST = 64 << 20
_SHARED_PATHS = ("/dev/shm/", "/dev/zero", "/memfd:")
_FIXED = 0x10


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """A region of shared memory and its content."""

    address: int
    content: bytes


def snapshot() -> list[SharedRegion]:
    """Copy the writable shared regions of this process."""
    return [
        SharedRegion(one.start, ctypes.string_at(one.start, one.end - one.start))
        for one in memory_maps()
        if one.permissions == "rw-s" and one.path.startswith(_SHARED_PATHS) and one.end - one.start <= LARGEST
    ]


def replace_regions(regions: list[SharedRegion]) -> None:
    """Map new memory over each region, with the copied content."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    how = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _FIXED
    for region in regions:
        size = len(region.content)
        placed = libc.mmap(region.address, size, mmap.PROT_READ | mmap.PROT_WRITE, how, -1, 0)
        if placed == region.address:
            ctypes.memmove(region.address, region.content, size)
