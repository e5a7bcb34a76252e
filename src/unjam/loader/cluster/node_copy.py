"""One copy of a dataset for all workers of a machine, whichever loader or rank they belong to.

The copy is anonymous memory whose name contains a digest of its content. Another process of the same
user finds it by that name among the open descriptors of processes, so nothing is left behind when the
last of them ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from unjam.loader.engine.deadlines import NODE_COPY
from unjam.loader.ship.shipping import Manifest
from unjam.system.memory import Mapping, OwnedFd, create

# the byte after the content says that all of it is there
_COMPLETE = 1
_PIECE = 64 << 20
_STEP = 0.02  # seconds between two looks for a copy that another process makes


def node_copy(digest: str, manifest: Manifest, content: Callable[[], Any]) -> tuple[OwnedFd, Mapping]:
    """Return the machine's copy; make it from `content()` if there is none."""
    label, size = f"dataset-{digest}", manifest.size + 1
    until = time.monotonic() + NODE_COPY.seconds
    with contextlib.ExitStack() as stack:
        maker = socket.socket(socket.AF_UNIX)
        stack.callback(maker.close)
        while True:
            found = _find(label, size)
            if found is not None:
                return found
            try:
                # a name that goes with its process: only one process at a time makes the copy
                maker.bind(f"\0unjam-{os.getuid()}-{digest}")
                break
            except OSError:
                if time.monotonic() > until:
                    break  # the other one is stuck: make another copy
            _pause(_STEP)
        found = _find(label, size)  # it may have come between the two
        if found is not None:
            return found
        fd = OwnedFd(create(size, label))
        mapping = Mapping(fd, size)
        view = mapping.view()
        source = memoryview(content())
        for at in range(0, manifest.size, _PIECE):  # in pieces: other threads have to answer meanwhile
            end = min(at + _PIECE, manifest.size)
            view[at:end] = source[at:end]
        view[manifest.size] = _COMPLETE
        return fd, mapping


def _find(label: str, size: int) -> tuple[OwnedFd, Mapping] | None:
    for path in _descriptors(f"/memfd:unjam-{label} (deleted)"):
        with contextlib.suppress(OSError):
            fd = OwnedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            if os.fstat(fd).st_size == size:
                mapping = Mapping(fd, size)
                if mapping.view()[size - 1] == _COMPLETE:
                    return fd, mapping
    return None


def _descriptors(target: str) -> Iterator[str]:
    """Yield the descriptors, of processes that we may look into, that refer to a file."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        folder = f"/proc/{pid}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(f"{folder}/{name}") == target:
                        yield f"{folder}/{name}"


def _pause(seconds: float) -> None:
    import select  # noqa: PLC0415 - only here

    select.select([], [], [], seconds)
