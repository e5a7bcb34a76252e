"""One copy of a dataset for all workers of a machine, whichever loader or rank they belong to.

The copy is anonymous memory whose name contains a digest of its content. Another process of the same
user finds it by that name among the open descriptors of that user's processes, so nothing is left
behind when the last of them ends. Anybody can make memory with that name, and the content is going to
be unpickled. So a copy counts only if it belongs to this user, if it is sealed, which means that
it cannot be changed any more, and if its content has the digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from unjam.deadlines import NAME_CONFLICT, NODE_COPY
from unjam.loader.ship.shipping import Manifest
from unjam.system.memory import MemoryMapping, create, create_sealable
from unjam.system.owned_fd import OwnedFd, readable
from unjam.system.private_files import is_own_peer
from unjam.system.proc_files import descriptors

_PIECE = 64 << 20
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_STEP = 0.02  # seconds between two attempts to reach whoever has the name


def digest_of(content: Any) -> str:
    """The digest that names a copy."""
    found = hashlib.blake2b(digest_size=16)
    view = memoryview(content)
    for at in range(0, len(view), _PIECE):  # in pieces: other threads have to answer meanwhile
        found.update(view[at : at + _PIECE])
    return found.hexdigest()


def node_copy(digest: str, manifest: Manifest, content: Callable[[], Any]) -> tuple[OwnedFd, MemoryMapping]:
    """Return the machine's copy; make it from `content()` if there is none."""
    until = time.monotonic() + NODE_COPY.seconds
    # a name that goes with its process: only one process at a time makes the copy
    name = f"\0unjam-{os.geteuid()}-{digest}"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as maker:
        while True:
            found = _find(digest, manifest.size)
            if found is not None:
                return found
            if _takes(name, maker) or not _other_is_done(name, until):
                break
        return _find(digest, manifest.size) or _make(digest, manifest.size, content())  # it may have come meanwhile


def _make(digest: str, size: int, content: Any) -> tuple[OwnedFd, MemoryMapping]:
    label = f"dataset-{digest}"
    sealable = create_sealable(label)
    fd = OwnedFd(create(size, label) if sealable is None else sealable)
    source = memoryview(content)
    at = 0
    while at < size:
        at += os.pwrite(fd, source[at : min(at + _PIECE, size)], at)
    if sealable is not None:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd, MemoryMapping(fd, max(size, 1), private=True)


def _find(digest: str, size: int) -> tuple[OwnedFd, MemoryMapping] | None:
    for path in _descriptors(f"/memfd:unjam-dataset-{digest} (deleted)"):
        with contextlib.suppress(OSError):
            fd = OwnedFd(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_size != size:
                continue
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                continue  # not complete yet, or never to be trusted
            mapping = MemoryMapping(fd, max(size, 1), private=True)
            if digest_of(mapping.view()[:size]) == digest:
                return fd, mapping
    return None


def _descriptors(target: str) -> Iterator[str]:
    """Yield the descriptors of this user's processes that refer to a file."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
                yield from (f"/proc/{pid}/fd/{fd}" for fd, found in descriptors(pid).items() if found == target)


def _takes(name: str, maker: socket.socket) -> bool:
    """Take a name that only one process can have; False if another process has it."""
    try:
        maker.bind(name)
    except OSError:
        return False
    maker.listen(64)
    return True


def _other_is_done(name: str, until: float) -> bool:
    """Wait for the process that has the name; False if it is stuck or belongs to another user."""
    patience = min(until, time.monotonic() + NAME_CONFLICT.seconds)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as other:
        other.settimeout(0)
        while True:
            try:
                other.connect(name)
                break
            except ConnectionRefusedError:
                with contextlib.closing(socket.socket(socket.AF_UNIX)) as attempt:
                    if _takes(name, attempt):
                        return True  # it has ended
                if time.monotonic() > patience:
                    return False  # our processes would be listening
            except BlockingIOError:
                if time.monotonic() > patience:
                    return False
            select.select([], [], [], _STEP)
        if not is_own_peer(other):
            return False
        return readable(other.fileno(), until - time.monotonic())
