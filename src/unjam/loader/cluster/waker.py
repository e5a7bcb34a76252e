"""Wakes a thread that polls descriptors."""

from __future__ import annotations

import contextlib
import os

from unjam.system.owned_fd import OwnedFd


class Waker:
    """A pipe to oneself. It stays open as long as another thread may wake us: a descriptor closed too early could be reused for another file."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self.fd, self._write = OwnedFd(read), OwnedFd(write)
        for fd in (read, write):
            os.set_blocking(fd, False)

    def wake(self) -> None:
        """Make `fd` readable; any thread may call it."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")

    def drain(self) -> None:
        """Read what woke us."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
