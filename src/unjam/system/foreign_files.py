"""Reading files that another process names, with no more rights than that process has.

`unjam why` may run as root and inspect any user's program. The names of source files come from that
program, so its author can choose a file that only root may read, a pipe without a writer, or a
link. So we open a file as the program's own user, inside the program's own root folder, and only if
it is a regular file of a sensible size.

On Linux each thread has its own user for file access. So a new thread takes over the other user's
identity, reads the file and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import linecache
import os
import platform
import stat
import struct
import sys
import threading
import tokenize
from collections.abc import Callable

from unjam.deadlines import FOREIGN_FILE
from unjam.system.owned_fd import OwnedFd
from unjam.system.proc_files import read_text

MOST_BYTES = 2 << 20
_RESOLVE_IN_ROOT, _RESOLVE_NO_MAGICLINKS = 0x10, 0x02
# numbers of setgroups, setfsuid, setfsgid, called directly so that they act on one thread only
_CALLS = {
    "x86_64": (116, 122, 123),
    "aarch64": (159, 151, 152),
    "riscv64": (159, 151, 152),
    "loongarch64": (159, 151, 152),
}
_OPENAT2 = 437  # the same on every architecture


def read_their_file(pid: int, path: str) -> str | None:
    """The text of a file as process `pid` would read it; None if it cannot be read."""
    data = _as_their_user(pid, lambda: _read_inside(pid, path, MOST_BYTES))
    if data is None:
        return None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:
        encoding = "utf-8"
    return data.decode(encoding, "replace")


def read_their_output(pid: int, fd: int, most: int) -> bytes:
    """The last bytes of the regular file behind a descriptor of `pid`; empty for other files.

    We open it through the descriptor: a different file may have its name by now.
    """
    return _as_their_user(pid, lambda: _read_end(f"/proc/{pid}/fd/{fd}", most)) or b""


def load_sources(pid: int, files: set[str]) -> None:
    """Fill `linecache` with the source files that a process names, so that it opens none itself.

    A file that cannot be read has no lines. The first process that can read a file decides its
    text.
    """
    for file in files:
        known = linecache.cache.get(file)
        if len(_tried) > MOST_FILES:
            linecache.cache.setdefault(file, (0, None, [], file))  # linecache must not open it
            continue
        if known is not None and len(known) > 1 and (known[2] or pid in _tried.get(file, ())):
            continue
        _tried.setdefault(file, set()).add(pid)
        text = None if file.startswith("<") else read_their_file(pid, file)
        lines = io.StringIO(text or "", newline=None).readlines()  # as Python counts lines
        linecache.cache[file] = (len(text or ""), None, lines, file)


MOST_FILES = 5000
_tried: dict[str, set[int]] = {}  # by file: the processes whose view of it was read


class _Identity:
    """The user and the groups that a process opens files as."""

    def __init__(self, pid: int) -> None:
        lines = (line.partition(":") for line in read_text(f"/proc/{pid}/status").splitlines())
        words = {name: values.split() for name, _, values in lines}
        self.uid, self.gid = int(words["Uid"][3]), int(words["Gid"][3])
        self.groups = [int(word) for word in words.get("Groups", [])]


def _as_their_user(pid: int, read: Callable[[], bytes | None]) -> bytes | None:
    """Call `read` with the rights of a process's user; None if we cannot get these rights."""
    try:
        identity = _Identity(pid)
    except (KeyError, ValueError, IndexError):  # the process has ended
        return None
    if identity.uid == os.geteuid():
        return _quietly(read)
    if os.geteuid() != 0 or not sys.platform.startswith("linux") or platform.machine() not in _CALLS:
        return None
    found: list[bytes | None] = []

    def work() -> None:
        if _become(identity):
            found.append(_quietly(read))

    thread = threading.Thread(target=work, name="unjam-reads-as-user", daemon=True)  # a dead network disk may block it
    thread.start()
    thread.join(FOREIGN_FILE.seconds)
    return found[0] if found else None


def _quietly(read: Callable[[], bytes | None]) -> bytes | None:
    with contextlib.suppress(OSError, ValueError):
        return read()
    return None


def _become(identity: _Identity) -> bool:
    """Permanently take over an identity for file access, in this thread.

    A thread that is no longer root for file access also loses root's rights over files.
    """
    system = ctypes.CDLL(None, use_errno=True).syscall
    set_groups, set_user, set_group = _CALLS[platform.machine()]
    groups = (ctypes.c_uint32 * len(identity.groups))(*identity.groups)
    if system(set_groups, ctypes.c_size_t(len(identity.groups)), groups) != 0:
        return False
    system(set_group, ctypes.c_uint32(identity.gid))
    system(set_user, ctypes.c_uint32(identity.uid))
    # with an invalid number, both calls change nothing and return the current value
    invalid = ctypes.c_uint32(0xFFFFFFFF)
    return bool(system(set_group, invalid) == identity.gid and system(set_user, invalid) == identity.uid)


def _read_inside(pid: int, path: str, most: int) -> bytes | None:
    """The bytes of a regular file under a process's root folder.

    A relative path starts at the process's working directory.
    """
    root = OwnedFd(os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    if not path.startswith("/"):
        base = os.readlink(f"/proc/{pid}/cwd")
        if not base.startswith("/") or base.endswith(" (deleted)"):
            return None
        path = os.path.join(base, path)
    fd = OwnedFd(_open_in_root(root, path))
    if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_size > most:
        return None
    return _read(_open_to_read(f"/proc/self/fd/{fd}"), 0, most)


def _open_in_root(root: int, path: str) -> int:
    """An O_PATH descriptor of a path below a folder. Links and `..` cannot leave the folder."""
    flags = os.O_PATH | os.O_CLOEXEC
    how = struct.pack("=QQQ", flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    system = ctypes.CDLL(None, use_errno=True).syscall
    fd = int(system(_OPENAT2, root, os.fsencode(path), how, ctypes.c_size_t(len(how))))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    here = os.stat("/")
    there = os.fstat(root)
    # ENOSYS or EPERM (kernels before 5.6, some sandboxes): use a normal open if the process has our root
    if code in (errno.ENOSYS, errno.EPERM) and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
        return os.open(path, flags)
    raise OSError(code, os.strerror(code), path)


def _open_to_read(path: str) -> OwnedFd:
    return OwnedFd(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))


def _read_end(path: str, most: int) -> bytes:
    # check before we open: opening a device can have effects
    if not stat.S_ISREG(os.stat(path).st_mode):
        return b""
    fd = _open_to_read(path)
    status = os.fstat(fd)
    return _read(fd, max(0, status.st_size - most), most) if stat.S_ISREG(status.st_mode) else b""


def _read(fd: int, at: int, most: int) -> bytes:
    parts = []
    while most > 0 and (part := os.pread(fd, most, at)):
        parts.append(part)
        at, most = at + len(part), most - len(part)
    return b"".join(parts)
