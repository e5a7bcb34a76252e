"""Files that another process names, read with no more rights than that process has.

`unjam why` may run as root and look at anybody's program. The names of source files come from that program, so whoever wrote it chooses them:
a file that only root may read, a pipe that nobody writes to, a link. So a file is opened as the program's own user would open it, inside the
program's own root folder, and only if it is a regular file of a sensible size.

The identity for files is a property of a thread on Linux, so a thread that is made for it takes the other user's and ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import linecache
import os
import platform
import stat
import struct
import sys
import threading
import tokenize

from unjam.loader.engine.deadlines import THEIR_FILE
from unjam.system.waiting import read_text

MOST_BYTES = 2 << 20
_RESOLVE_IN_ROOT, _RESOLVE_NO_MAGICLINKS = 0x10, 0x02
# numbers of the system calls that glibc has no per-thread function for: setgroups, setfsuid, setfsgid; openat2 is the same everywhere
_CALLS = {
    "x86_64": (116, 122, 123),
    "aarch64": (159, 151, 152),
    "riscv64": (159, 151, 152),
    "loongarch64": (159, 151, 152),
}
_OPENAT2 = 437


def read_their_file(pid: int, path: str, most: int = MOST_BYTES) -> str | None:
    """The text of a file as process `pid` would read it; None where it cannot be had."""
    data = _as_their_user(pid, lambda: _read_inside(pid, path, most))
    if data is None:
        return None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:
        encoding = "utf-8"
    return data.decode(encoding, "replace")


def read_their_output(pid: int, fd: int, most: int) -> bytes:
    """The last bytes of the regular file that a descriptor of process `pid` is; empty for anything else.

    It is opened through the descriptor, not by its name: at that name something else may lie by now.
    """
    return _as_their_user(pid, lambda: _read_end(f"/proc/{pid}/fd/{fd}", most)) or b""


def load_sources(pid: int, files: set[str]) -> None:
    """Put the source files that a process names where `linecache` finds them; it then reads none of them by itself.

    A file that cannot be had has no lines. The first process that can read a name decides what it stands for.
    """
    for file in files:
        known = linecache.cache.get(file)
        if len(_asked) > MOST_FILES and known is None:
            linecache.cache[file] = (0, None, [], file)  # it must not be read by anybody else
        if (known is not None and len(known) > 1 and (known[2] or pid in _asked.get(file, ()))) or len(
            _asked
        ) > MOST_FILES:
            continue
        _asked.setdefault(file, set()).add(pid)
        text = None if file.startswith("<") else read_their_file(pid, file)
        lines = io.StringIO(text or "", newline=None).readlines()  # as Python counts lines
        linecache.cache[file] = (len(text or ""), None, lines, file)


MOST_FILES = 5000
_asked: dict[str, set[int]] = {}


class _Identity:
    """The user and the groups that a process opens files as."""

    def __init__(self, pid: int) -> None:
        words = {
            line.partition(":")[0]: line.partition(":")[2].split()
            for line in read_text(f"/proc/{pid}/status").splitlines()
        }
        self.uid, self.gid = int(words["Uid"][3]), int(words["Gid"][3])
        self.groups = [int(word) for word in words.get("Groups", [])]

    @property
    def is_mine(self) -> bool:
        return self.uid == os.geteuid()


def _as_their_user(pid: int, read: object) -> bytes | None:
    """What `read` returns, called with the rights of a process's user; None where these cannot be had."""
    try:
        identity = _Identity(pid)
    except (KeyError, ValueError, IndexError):  # it has ended
        return None
    if identity.is_mine:
        return _quietly(read)
    if os.geteuid() != 0 or not sys.platform.startswith("linux") or platform.machine() not in _CALLS:
        return None
    found: list[bytes | None] = []

    def work() -> None:
        if _become(identity):
            found.append(_quietly(read))

    thread = threading.Thread(target=work, name="unjam-reads-as-user", daemon=True)  # a dead network disk may keep it
    thread.start()
    thread.join(THEIR_FILE.seconds)
    return found[0] if found else None


def _quietly(read: object) -> bytes | None:
    with contextlib.suppress(OSError, ValueError):
        return read()  # type: ignore[operator,no-any-return]
    return None


def _become(identity: _Identity) -> bool:
    """Take over an identity for files, in this thread and for ever. Leaving root's gives up root's rights over files too."""
    system = ctypes.CDLL(None, use_errno=True).syscall
    set_groups, set_user, set_group = _CALLS[platform.machine()]
    groups = (ctypes.c_uint32 * len(identity.groups))(*identity.groups)
    if system(set_groups, ctypes.c_size_t(len(identity.groups)), groups) != 0:
        return False
    system(set_group, ctypes.c_uint32(identity.gid))
    system(set_user, ctypes.c_uint32(identity.uid))
    # asked with a number that nobody has, both only answer with what holds now
    nobody = ctypes.c_uint32(0xFFFFFFFF)
    return bool(system(set_group, nobody) == identity.gid and system(set_user, nobody) == identity.uid)


def _read_inside(pid: int, path: str, most: int) -> bytes | None:
    """The bytes of a regular file under a process's root folder or, where the name is not absolute, its working directory."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not path.startswith("/"):
            base = os.readlink(f"/proc/{pid}/cwd")
            if not base.startswith("/") or base.endswith(" (deleted)"):
                return None
            path = os.path.join(base, path)
        fd = _open_in_root(root, path)
    finally:
        os.close(root)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_size > most:
            return None
        return _reopened(fd, most)
    finally:
        os.close(fd)


def _open_in_root(root: int, path: str) -> int:
    """A handle on a path below a folder. Links and `..` cannot leave the folder, and nothing is opened yet."""
    flags = os.O_PATH | os.O_CLOEXEC
    how = struct.pack("=QQQ", flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    system = ctypes.CDLL(None, use_errno=True).syscall
    fd = int(system(_OPENAT2, root, os.fsencode(path), how, ctypes.c_size_t(len(how))))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    here = os.stat("/")
    there = os.fstat(root)
    # kernels before 5.6, and sandboxes that do not know the call: the plain way, where the root is ours too
    if code == 38 and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
        return os.open(path, flags)
    raise OSError(code, os.strerror(code), path)


def _reopened(fd: int, most: int) -> bytes:
    reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return _read(reading, 0, most)
    finally:
        os.close(reading)


def _read_end(path: str, most: int) -> bytes:
    # a look before the opening: opening a device can do something
    if not stat.S_ISREG(os.stat(path).st_mode):
        return b""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        return _read(fd, max(0, status.st_size - most), most) if stat.S_ISREG(status.st_mode) else b""
    finally:
        os.close(fd)


def _read(fd: int, at: int, most: int) -> bytes:
    parts = []
    while most > 0 and (part := os.pread(fd, most, at)):
        parts.append(part)
        at, most = at + len(part), most - len(part)
    return b"".join(parts)
