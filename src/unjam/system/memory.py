"""Anonymous memory that two processes can map.

We use `memfd_create` where the kernel has it: its memory counts for the memory cgroup, not for the
/dev/shm mount. Elsewhere an unlinked temporary file does the same job.

We call mmap(2) directly, because Python's `mmap` object keeps a descriptor open as long as it
lives, and a user may hold thousands of batches with `ulimit -n 256`.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

PORTABLE_VARIABLE = "UNJAM_PORTABLE_MEMORY"


def create(size: int, label: str) -> int:
    """Create `size` zeroed bytes of anonymous memory and return a descriptor of it."""
    if hasattr(os, "memfd_create") and not os.environ.get(PORTABLE_VARIABLE):
        fd = os.memfd_create(f"unjam-{label}", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix="unjam-", buffering=0) as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_sealable(label: str) -> int | None:
    """A descriptor of empty anonymous memory that can be made immutable; None if this system has none."""
    if not hasattr(os, "memfd_create") or os.environ.get(PORTABLE_VARIABLE):
        return None
    return os.memfd_create(f"unjam-{label}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    number, size = ctypes.c_int, ctypes.c_size_t
    libc.mmap.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_longlong)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return libc


def same_bytes(first: int, second: int, count: int) -> bool:
    """Whether `count` bytes at two addresses are equal."""
    return bool(_libc().memcmp(first, second, count) == 0)


def address_of(view: memoryview) -> int:
    """The address of a contiguous buffer; unlike ctypes, this accepts read-only buffers."""
    return int(np.asarray(view).__array_interface__["data"][0])


class _MappedMemory:
    """A range of memory: address and size."""

    __slots__ = ("address", "array_type", "size")
    address: int
    size: int
    array_type: Any

    def owner(self) -> Any:
        """A new buffer object over the whole memory, which keeps the memory alive."""
        array = self.array_type.from_address(self.address)
        array.mapping = self
        return array

    def view(self) -> memoryview:
        """The bytes, writable."""
        return memoryview(self.owner()).cast("B")


class MemoryMapping(_MappedMemory):
    """The memory of a descriptor, mapped while this object or one of its owners lives."""

    __slots__ = ("__weakref__", "before_unmap")

    def __init__(self, fd: int, size: int, *, private: bool = False) -> None:
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            code = ctypes.get_errno()
            raise OSError(code, f"cannot map {size} bytes: {os.strerror(code)}")
        self.address = address
        self.size = size
        self.array_type = ctypes.c_ubyte * size
        # functions to call before the memory is unmapped
        self.before_unmap: list[Callable[[], None]] = []
        weakref.finalize(self, _unmap, address, size, self.before_unmap).atexit = False

    def advise(self, advice: int) -> None:
        """madvise(2); a kernel that does not know the advice ignores it."""
        _libc().madvise(self.address, self.size, advice)


def _unmap(address: int, size: int, before: list[Callable[[], None]]) -> None:
    for action in before:
        action()
    _libc().munmap(address, size)


class ReceivedMemory(_MappedMemory):
    """The same interface over memory that other code has mapped."""

    __slots__ = ("keeps",)

    def __init__(self, view: memoryview) -> None:
        self.keeps = view
        self.address, self.size = address_of(view), view.nbytes
        self.array_type = ctypes.c_ubyte * view.nbytes


class PrivateMemory(_MappedMemory):
    """The same interface over normal memory of this process, for when sharing is impossible."""

    __slots__ = ("memory",)

    def __init__(self, size: int) -> None:
        self.array_type = ctypes.c_ubyte * size
        self.memory = self.array_type()
        self.address = ctypes.addressof(self.memory)
        self.size = size
