"""File descriptors: one that closes itself, and waiting until one can be read."""

from __future__ import annotations

import os
import select
from collections.abc import Callable


class OwnedFd(int):
    """A descriptor that is closed when its last reference is gone."""

    __slots__ = ()

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        _close(int(self))


def readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor can be read, or the process of a pidfd has ended; at most `seconds`."""
    poller = select.poll()  # unlike select(), it takes descriptors above 1023
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0, int(seconds * 1000))))
