"""Copies files into the layers of a view, with owner, mode, times and attributes as far as this user may set them."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import sys

from unjam.system.proc_files import read_text

# the number of folders in which we search for folders that this user may write to
MOST_FOLDERS_READ = 300


def copy_foreign_folders(source: bytes, upper: bytes) -> None:
    """Copy folders of other users into the layer, the outer ones first.

    Before a file is changed, the kernel copies the folders above it into the layer. In a user namespace it
    cannot copy folders of other users, who do not exist there. So we copy in advance the folders above
    those that this user may write to: the ones that the program's arguments and environment name, and the
    ones that a short search finds.
    """
    for path in _likely_paths():
        if path.startswith(source.rstrip(b"/") + b"/") and os.path.isdir(path):
            _copy_folder(source, upper, path)
    wanted = [(source, upper)]
    read = 0
    while wanted and read < MOST_FOLDERS_READ:
        folder, copy = wanted.pop(0)
        read += 1
        for entry in entries(folder):
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    continue
                status = entry.stat(follow_symlinks=False)
                if _is_ours(status):
                    if folder != source:
                        _copy_folder(source, upper, folder)
                else:
                    below = os.path.join(copy, entry.name)
                    if os.access(entry.path, os.W_OK):
                        _copy_folder(source, upper, entry.path)
                    wanted.append((entry.path, below))


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() != _unknown_user() and status.st_gid == os.getegid()


@functools.cache
def _unknown_user() -> int:
    """The number that a user namespace shows for every user outside of it. Our own number may be the same."""
    return int(read_text("/proc/sys/kernel/overflowuid") or 65534)


def _likely_paths() -> set[bytes]:
    """The home and the current folder, and the paths in the arguments and the environment, with their folders."""
    named = [os.getcwdb(), os.path.expanduser(b"~"), *map(os.fsencode, sys.argv)]
    named += [part for value in os.environb.values() for part in value.split(b":")]
    found: set[bytes] = set()
    for path in named:
        real = os.path.realpath(path)
        found |= {real, os.path.dirname(real)}
    return found


def _copy_folder(source: bytes, upper: bytes, folder: bytes) -> None:
    """Copy a folder and those above it, up to the source, into the layer, without their entries."""
    parts = os.path.relpath(folder, source).split(b"/")
    for end in range(1, len(parts) + 1):
        path, original = os.path.join(upper, *parts[:end]), os.path.join(source, *parts[:end])
        if _is_ours(os.lstat(original)):
            return  # the kernel can copy it, and everything below
        if not os.path.isdir(path):
            os.mkdir(path)
            copy_status(original, path)


def copy_tree(source: bytes, target: bytes, earlier: list[bytes]) -> None:
    """Copy a layer, with the marks of deleted files, which are devices and attributes."""
    os.mkdir(target, 0o700)
    for entry in entries(source):
        copy = os.path.join(target, entry.name)
        others = [os.path.join(one, entry.name) for one in earlier]
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            copy_tree(entry.path, copy, others)
            continue
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(entry.path), copy)
        elif stat.S_ISREG(status.st_mode):
            same = next((one for one in others if _is_same(one, entry.path, status)), None)
            if same is not None:
                os.link(same, copy)
                continue
            shutil.copyfile(entry.path, copy)
        else:
            os.mknod(copy, status.st_mode, status.st_rdev)
        copy_status(entry.path, copy)
    copy_status(source, target)


def _is_same(one: bytes, other: bytes, status: os.stat_result) -> bool:
    try:
        known = os.lstat(one)
        facts = ("st_size", "st_mtime_ns", "st_mode", "st_uid", "st_gid")
        if any(getattr(known, name) != getattr(status, name) for name in facts):
            return False
        with open(one, "rb") as first, open(other, "rb") as second:
            while block := first.read(1 << 20):
                if block != second.read(1 << 20):
                    return False
    except OSError:
        return False
    return True


def copy_status(source: bytes, target: bytes) -> None:
    """Give a copy the owner, mode, times and attributes of the original, as far as this user may."""
    status = os.lstat(source)
    is_link = stat.S_ISLNK(status.st_mode)
    mode = stat.S_IMODE(status.st_mode)
    is_same = status.st_uid != _unknown_user()
    try:
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    except OSError:
        is_same = False
    if not is_same and not is_link:
        # The copy belongs to us, or may do so: grant this user only what it may do with the original.
        mode = mode | 0o600 if os.access(source, os.W_OK) else mode & ~0o222
    with contextlib.suppress(OSError):
        for name in os.listxattr(source, follow_symlinks=False):
            with contextlib.suppress(OSError):
                os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
    if not is_link:
        os.chmod(target, mode)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    """The entries of a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
