"""Mount namespaces: the system calls, and the mounts that a process sees."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x2, 0x4, 0x1000, 0x4000, 0x40000
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "s390x": 217, "riscv64": 41}
_MOUNT_SETATTR, _AT_RECURSIVE, _AT_FDCWD = 442, 0x8000, -100
_CAPSET = {"x86_64": 126, "aarch64": 91, "ppc64le": 184, "s390x": 185, "riscv64": 91}
_CAPABILITY_VERSION = 0x20080522
# file systems that hold the kernel's state, not the user's data; an overlay over them is refused or useless
_OF_THE_KERNEL = frozenset({
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
    "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
})  # fmt: skip


class CannotIsolate(Exception):
    """The files of this process cannot be isolated. The text says why."""


class CallRefused(CannotIsolate):
    """The kernel refused a system call."""

    def __init__(self, call: str, number: int) -> None:
        super().__init__(f"{call}: {os.strerror(number)}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system. `point` is its path, which need not be UTF-8 and is therefore bytes."""

    point: bytes
    kind: str
    read_only: bool

    @property
    def is_kernels(self) -> bool:
        """Whether it holds devices or state of the kernel, not data."""
        return self.kind in _OF_THE_KERNEL or self.point == b"/dev"


class Kernel:
    """The calls that change the mounts of this process."""

    def __init__(self) -> None:
        system = os.uname()
        if system.sysname != "Linux" or system.machine not in _PIVOT_ROOT:
            raise CannotIsolate(f"mount namespaces are not supported on {system.sysname} {system.machine}")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mount.argtypes = (
            ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p,
        )  # fmt: skip
        self._machine = system.machine

    def unshare_mounts(self) -> bool:
        """Give this process its own mounts; return whether it is in a user namespace then."""
        if self._libc.unshare(_NEW_MOUNTS):
            user, group = os.geteuid(), os.getegid()
            self._call("unshare", self._libc.unshare(_NEW_MOUNTS | _NEW_USER))
            maps = (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"))
            for name, text in maps:
                try:
                    with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                        file.write(text)
                except OSError as error:
                    raise CannotIsolate(f"cannot set up a user namespace: {error.strerror}") from error
        self._call("mount", self._libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None))
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() != ["0", "0", "4294967295"]

    def mount(self, kind: str, target: bytes, options: bytes) -> None:
        """Mount a new file system."""
        # in a user namespace both flags are set anyway; as root, the originals may have neither
        flags = 0 if kind == "overlay" else _NO_SUID | _NO_DEVICES
        name = kind.encode()
        self._call(f"mount {kind} on {os.fsdecode(target)}", self._libc.mount(name, target, name, flags, options))

    def bind(self, source: bytes, target: bytes, *, recursive: bool = False) -> None:
        """Show a file or folder at a second path."""
        flags = _BIND | (_RECURSIVE if recursive else 0)
        self._call(f"bind {os.fsdecode(target)}", self._libc.mount(source, target, None, flags, None))

    def make_read_only(self, point: bytes) -> None:
        """Refuse writes through a mount and all mounts below it."""
        attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
        self._call(
            f"make {os.fsdecode(point)} read-only",
            self._libc.syscall(
                ctypes.c_long(_MOUNT_SETATTR), ctypes.c_long(_AT_FDCWD), point, ctypes.c_long(_AT_RECURSIVE),
                attributes, ctypes.c_size_t(ctypes.sizeof(attributes)),
            ),
        )  # fmt: skip

    def unmount(self, point: bytes) -> None:
        """Detach a mount and all below it."""
        self._call(f"unmount {os.fsdecode(point)}", self._libc.umount2(point, _DETACH))

    def pivot_root(self, new: bytes, old: bytes) -> None:
        """Make `new` the root; the former root appears at `old`, a folder below `new`."""
        self._call("pivot_root", self._libc.syscall(_PIVOT_ROOT[self._machine], new, old))

    def drop_capabilities(self) -> None:
        """Give up the rights that the user namespace granted, so that file permissions apply as before."""
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        none = (ctypes.c_uint32 * 6)()
        self._call("capset", self._libc.syscall(_CAPSET[self._machine], header, none))

    @staticmethod
    def _call(what: str, result: int) -> None:
        if result:
            raise CallRefused(what, ctypes.get_errno())


def mounted(pid: int | str = "self") -> list[Mount]:
    """The mounts that a process can reach, outer ones first, one for each mount point."""
    known: dict[int, tuple[int, Mount]] = {}
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        for line in file:
            fields, _, rest = line.partition(b" - ")
            key, above, _, _, point, options = fields.split()[:6]
            one = Mount(_unescaped(point), rest.split()[0].decode(), b"ro" in options.split(b","))
            known[int(key)] = (int(above), one)
    below: dict[int, list[int]] = {}
    for number, (parent, _) in known.items():
        if parent in known and parent != number:
            below.setdefault(parent, []).append(number)
    found: list[Mount] = []
    waiting = [number for number, (parent, one) in known.items() if parent not in known and one.point == b"/"]
    while waiting:
        number = waiting.pop(0)
        own = known[number][1].point
        inner = below.get(number, [])
        over = [each for each in inner if known[each][1].point == own]
        if over:
            waiting.append(over[-1])  # mounted on the same folder, it hides the mount and everything below it
            continue
        found.append(known[number][1])
        points = [known[each][1].point for each in inner]
        waiting += [
            each
            for each, at in zip(inner, points, strict=True)
            if not any(at.startswith(other + b"/") for other in points)
        ]
    return sorted(found, key=lambda one: one.point.rstrip(b"/").count(b"/"))


@contextlib.contextmanager
def named_by_descriptor(*paths: bytes) -> Iterator[list[bytes]]:
    """Names of folders for mount options, in which `,`, `:` and a backslash have a meaning."""
    opened: list[int] = []
    try:
        for path in paths:
            opened.append(os.open(path, os.O_PATH | os.O_CLOEXEC))  # noqa: PERF401 - one may fail
        yield [b"/proc/self/fd/%d" % one for one in opened]
    finally:
        for one in opened:
            os.close(one)


def _unescaped(path: bytes) -> bytes:
    """A path of /proc/self/mountinfo, where a space is written as its octal number."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), path)
