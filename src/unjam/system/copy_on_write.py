"""A view of the file system in which what a process writes does not last.

NOTE [ The view ]

`enter` moves this process into a mount namespace of its own. Every real file system is covered by
an overlay: reads come from the original, writes go to a layer in memory that only this process and
its children see, and that vanishes with them. Kernel file systems (/proc, /sys, /dev) and /run stay
as they are, and so does shared memory.

`keep` remains the real folder, in every view. The original file systems stay reachable below it,
read-only: a process in a view uses them to build another view. `snapshot` copies the layer at one
moment, and a view that is entered with this copy shows the files as they were then, whatever the
program does to them later.

It needs the right to mount: root, or a user namespace that allows overlays.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import urllib.parse
from dataclasses import dataclass

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "s390x": 217, "riscv64": 41}
_KERNELS = ("/proc", "/sys", "/dev", "/run")
_ORIGINAL, _LAYERS = "original", "layers"
# a larger layer is not copied: the trials then share the program's files
MOST_COPIED = 1 << 30


class CannotIsolate(Exception):
    """This process cannot have a view of its own. The text says why."""


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted file system. `point`: its folder, without the path of the original root."""

    point: str
    kind: str
    read_only: bool

    @property
    def is_kernels(self) -> bool:
        return any(self.point == top or self.point.startswith(f"{top}/") for top in _KERNELS)


def enter(keep: str, name: str, below: str = "", folder: str = "") -> None:
    """Move this process into a new view. `below`: a snapshot whose files lie over the original ones.

    keep: a folder that exists. name: the name of the new layer in it. folder: the current folder in
    the new view; by default that of this process.
    """
    folder = folder or os.getcwd()
    original = f"{keep}/{_ORIGINAL}" if os.path.isdir(f"{keep}/{_ORIGINAL}") else ""
    libc = _libc()
    _unshare(libc)
    _mount(libc, "", "/", "", _RECURSIVE | _PRIVATE)
    layers = f"{keep}/{_LAYERS}.{name}"
    os.mkdir(layers, 0o700)
    _mount(libc, "tmpfs", layers, "tmpfs", 0, "mode=0700")
    new = f"{layers}/view"
    os.mkdir(new)
    mounts = _mounts(original, keep)
    for one in mounts:
        _cover(libc, one, original, layers, new, below)
    _mount(libc, keep, f"{new}{keep}", "", _BIND)
    _mount(libc, layers, f"{new}{layers}", "", _BIND)
    old = f"{new}{keep}/{_ORIGINAL}"
    if original:
        # the original was bound there before; the view that we leave is of no more use
        _mount(libc, original, old, "", _BIND | _RECURSIVE)
        old = f"{new}{keep}/left"
    os.makedirs(old, exist_ok=True)
    os.chdir(new)
    if libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", os.fsencode(os.path.relpath(old, new))):
        raise CannotIsolate(_reason("pivot_root"))
    os.chdir("/")
    if original:
        libc.umount2(os.fsencode(f"{keep}/left"), 2)
    else:
        _protect(libc, f"{keep}/{_ORIGINAL}")
    with contextlib.suppress(OSError):
        os.chdir(folder)


def snapshot(keep: str, source: str, name: str) -> str:
    """Copy the layer `source` as it is now; "" if it is too large or there is none."""
    layers = f"{keep}/{_LAYERS}.{source}"
    copy = f"{layers}/copies/{name}"  # an overlay cannot lie over a part of itself, but the layer is a file system of its own
    if not os.path.isdir(f"{layers}/view"):
        return ""
    own = [one for one in os.listdir(layers) if one not in ("view", "copies")]
    if sum(_size(f"{layers}/{one}/upper") for one in own) > MOST_COPIED:
        return ""
    for one in own:
        os.makedirs(f"{copy}/{one}")
        # cp keeps the marks of deleted files, which are device nodes and attributes
        done = subprocess.run(
            ["cp", "-a", f"{layers}/{one}/upper", f"{copy}/{one}/upper"],  # noqa: S607 - where it is differs
            check=False,
            capture_output=True,
        )
        if done.returncode:
            shutil.rmtree(copy, ignore_errors=True)
            return ""
    return copy


def join(pid: int) -> None:
    """Move this process into the mounts of another one."""
    libc = _libc()
    with open(f"/proc/{pid}/ns/mnt", "rb") as file:
        if libc.setns(file.fileno(), _NEW_MOUNTS):
            raise CannotIsolate(_reason("setns"))


def _size(folder: str) -> int:
    return sum(os.lstat(f"{at}/{name}").st_size for at, _, names in os.walk(folder) for name in names)


def _cover(libc: ctypes.CDLL, one: _Mount, original: str, layers: str, new: str, below: str) -> None:
    """Put one file system into the new view: an overlay over it, or itself."""
    source = one.point if one.is_kernels else f"{original}{one.point}"
    target = f"{new}{one.point}" if one.point != "/" else new
    if one.is_kernels or one.read_only or not os.path.isdir(source):
        if os.path.lexists(target) or one.point == "/":
            _mount(libc, source, target, "", _BIND)
        return
    name = urllib.parse.quote(one.point, safe="")
    own = f"{layers}/{name}"
    for part in ("upper", "work"):
        os.makedirs(f"{own}/{part}")
    shutil.copystat(source or "/", f"{own}/upper")
    with contextlib.suppress(OSError):
        status = os.stat(source or "/")
        os.chown(f"{own}/upper", status.st_uid, status.st_gid)
    lower = source or "/"
    copied = f"{below}/{name}/upper"
    if below and os.path.isdir(copied):
        lower = f"{copied}:{lower}"
    if not os.path.isdir(target):
        return  # hidden by a file system that was mounted above it
    options = f"lowerdir={lower},upperdir={own}/upper,workdir={own}/work"
    if "," in lower or any(":" in part or "\\" in part for part in (source, copied)):
        raise CannotIsolate(f"the path {source} has a character that overlays cannot take")
    _mount(libc, "overlay", target, "overlay", 0, options)


def _protect(libc: ctypes.CDLL, folder: str) -> None:
    """Make the original file systems read-only, here and for this process only."""
    for one in reversed(_all_mounts()):
        if one.point == folder or one.point.startswith(f"{folder}/"):
            inner = one.point[len(folder) :] or "/"
            if any(inner == top or inner.startswith(f"{top}/") for top in _KERNELS):
                libc.umount2(os.fsencode(one.point), 2)
            else:
                _mount(libc, "", one.point, "", _BIND | _REMOUNT | _READ_ONLY)


def _mounts(original: str, keep: str) -> list[_Mount]:
    """The mounted file systems of the original root, outer ones first, each mount point once."""
    found: dict[str, _Mount] = {}
    for one in _all_mounts():
        point = one.point
        if original:
            if point != original and not point.startswith(f"{original}/"):
                if one.is_kernels:
                    found[point] = one
                continue
            one = _Mount(point[len(original) :] or "/", one.kind, read_only=False)  # noqa: PLW2901 - read-only by `_protect`
        if one.point.startswith(f"{keep}/") or one.point == keep:
            continue
        found.pop(one.point, None)  # a later mount hides the earlier one
        found[one.point] = one
    return sorted(found.values(), key=lambda one: one.point.rstrip("/").count("/"))


def _all_mounts() -> list[_Mount]:
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields, _, rest = line.partition(" - ")
            parts = fields.split()
            point = parts[4].encode().decode("unicode_escape", "surrogateescape")
            found.append(_Mount(point, rest.split()[0], read_only="ro" in parts[5].split(",")))
    return found


def _unshare(libc: ctypes.CDLL) -> None:
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_MOUNTS) == 0:
        return
    if libc.unshare(_NEW_MOUNTS | _NEW_USER):
        raise CannotIsolate(_reason("unshare"))
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError as error:
        raise CannotIsolate(f"the user namespace cannot be set up: {error.strerror}") from error


def _mount(libc: ctypes.CDLL, source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    given = (
        os.fsencode(source) or None,
        os.fsencode(target),
        kind.encode() or None,
        flags,
        os.fsencode(options) or None,
    )
    if libc.mount(*given):
        raise CannotIsolate(_reason(f"mount {kind or 'bind'} on {target}"))


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    if os.uname().sysname != "Linux" or os.uname().machine not in _PIVOT_ROOT:
        raise CannotIsolate("only Linux has mount namespaces")
    libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
    return libc


def _reason(what: str) -> str:
    return f"{what}: {os.strerror(ctypes.get_errno())}"
