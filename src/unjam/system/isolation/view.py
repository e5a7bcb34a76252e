"""A view of the file system in which nothing that a process writes persists.

NOTE [ The view ]

`enter` moves this process into its own mount namespace, in which a layer covers every file system: reads
come from the original, and writes go to the layer in memory, which only this process and its children see
and which vanishes with them. Devices and the kernel's own file systems are not covered.

    base/shared            the real folder, in every view
    base/mounts/original   the original file systems, read-only
    base/mounts/NAME       the layers of the view NAME, one for each covered folder

Root covers a file system with one overlay. In a user namespace the kernel does not allow an overlay
over a folder that has a mount below it, so there such a folder is rebuilt: its files and links are
copied, each folder in it that has no mount below gets an overlay, and the others are rebuilt in turn.
In practice these are `/` and a few folders near it. A file there that is too large to copy becomes
read-only; `enter` returns the paths of such files.

A process in a view can enter another view, which is built over the original and, if given, over a
`snapshot` of the first view's layers. Such a view shows the files as they were at that moment.
/dev/shm is the exception: processes of one program share memory there, so views within a view share
its /dev/shm.

A socket does not work through an overlay, so the sockets in use are bound into the view one by one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from dataclasses import dataclass

from unjam.system.isolation.layer_files import copy_foreign_folders, copy_status, copy_tree, entries
from unjam.system.isolation.mounts import CallRefused, CannotIsolate, Kernel, Mount, mounted, named_by_descriptor
from unjam.system.memory_limits import available_memory

SHARED = "shared"
_MOUNTS, _ORIGINAL, _LEFT, _COPIES = b"mounts", b"original", b"left", b"copies"
# a larger file is shown read-only where its folder must be rebuilt
MOST_COPIED = 16 << 20
# the layers of all views of one program may use 1/SHARE_OF_MEMORY of the available memory
SHARE_OF_MEMORY = 5
_SMALLEST_LAYER = 64 << 20
# a layer with less room than this counts as full, because the write that failed needed more
_ROOM_LEFT = 1 << 20
_SHM = b"/dev/shm"


@dataclass(frozen=True, slots=True)
class _Layers:
    """The folders of a view under construction."""

    own: bytes  # its tmpfs
    below: bytes  # a snapshot's folder, or empty

    @property
    def root(self) -> bytes:
        return self.own + b"/view"

    def of(self, point: bytes) -> bytes:
        """The folder for the layer over one folder. A digest, because a path may be longer than a name."""
        return b"%s/layers/%s" % (self.own, _key(point))

    def copied(self, point: bytes) -> bytes:
        found = b"%s/%s" % (self.below, _key(point))
        return found if self.below and os.path.isdir(found) else b""


def enter(base: str, name: str, below: str = "", folder: str = "") -> list[str]:
    """Move this process into a new view; return the paths that are read-only in it.

    base: a folder of the doctor's, with a folder SHARED in it. name: of the new view. below: a
    snapshot to put over the original files. folder: the current folder in the new view.
    """
    at = os.fsencode(base)
    folder = folder or os.getcwd()
    inner = os.path.isdir(os.path.join(at, _MOUNTS, _ORIGINAL))
    kernel = Kernel()
    in_user_namespace = kernel.unshare_mounts()
    own = os.path.join(at, _MOUNTS, os.fsencode(name))
    os.makedirs(own, 0o700)
    kernel.mount("tmpfs", own, b"mode=0700,size=%d" % _room())
    os.mkdir(own + b"/view")
    os.mkdir(os.path.join(own, _COPIES), 0o700)
    # separate, so that a full folder of copies never looks like a full disk to the program
    kernel.mount("tmpfs", os.path.join(own, _COPIES), b"mode=0700,size=%d" % _room())
    view = _ViewBuilder(kernel, _Layers(own, os.fsencode(below)), at, inner, in_user_namespace)
    view.build()
    view.become_root()
    if in_user_namespace and os.geteuid():
        kernel.drop_capabilities()
    with contextlib.suppress(OSError):
        os.chdir(folder)
    return [os.fsdecode(path) for path in view.not_covered]


def original(base: str) -> str:
    """Where the original files are, within a view."""
    return os.path.join(base, os.fsdecode(_MOUNTS), os.fsdecode(_ORIGINAL))


def room_if_full(base: str, name: str) -> int:
    """In a view: the capacity of its layers in bytes if they are full, else 0."""
    try:
        found = os.statvfs(os.path.join(base, os.fsdecode(_MOUNTS), name))
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize if found.f_bavail * found.f_frsize < _ROOM_LEFT else 0


def is_in(pid: int, base: str, name: str = "") -> bool:
    """Whether a process is in the view of this name, or in any. The mounts tell; namespace numbers are reused."""
    top = os.path.join(os.fsencode(base), _MOUNTS)
    wanted = {os.path.join(top, os.fsencode(name)) if name else top}
    try:
        if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return False
        return not wanted.isdisjoint(one.point for one in mounted(pid))
    except OSError:
        return False


class _ViewBuilder:
    """Builds a view, mount by mount."""

    def __init__(self, kernel: Kernel, layers: _Layers, base: bytes, inner: bool, in_user_namespace: bool) -> None:  # noqa: FBT001 - private
        self._kernel, self._layers, self._base = kernel, layers, base
        self._original = os.path.join(base, _MOUNTS, _ORIGINAL) if inner else b""
        self._rebuilds = in_user_namespace
        self.not_covered: list[bytes] = []

    def build(self) -> None:
        """Cover every file system."""
        mounts = mounted()
        kernels = [one for one in mounts if self._is_uncovered(one)]
        points: list[Mount] = []
        for one in mounts:
            point = self._outside(one.point)
            if point is not None and not _is_within(point, [found.point for found in kernels]):
                points.append(Mount(point, one.kind, one.read_only))
        inner = [one.point for one in [*points, *kernels]]
        for one in points:
            self._show(one, inner)
        for one in kernels:
            above = [other.point for other in kernels if other is not one]
            if not _is_within(one.point, above) and os.path.lexists(self._target(one.point)):
                self._kernel.bind(one.point, self._target(one.point), recursive=True)
        if not self._original:
            self._cover_shared_memory()
        self._bind_sockets()

    def become_root(self) -> None:
        """Make the view the root; the originals stay reachable, read-only."""
        kernel, new, mounts = self._kernel, self._layers.root, os.path.join(self._base, _MOUNTS)
        kernel.bind(os.path.join(self._base, os.fsencode(SHARED)), new + os.path.join(self._base, os.fsencode(SHARED)))
        kernel.mount("tmpfs", new + mounts, b"mode=0700,size=1m")
        for name in (_ORIGINAL, _LEFT, os.path.basename(self._layers.own)):
            os.mkdir(os.path.join(new + mounts, name), 0o700)
        own = os.path.join(new + mounts, os.path.basename(self._layers.own))
        kernel.bind(self._layers.own, own)
        kernel.bind(os.path.join(self._layers.own, _COPIES), os.path.join(own, _COPIES))
        if self._original:
            kernel.bind(self._original, os.path.join(new + mounts, _ORIGINAL), recursive=True)
        old = _LEFT if self._original else _ORIGINAL
        os.chdir(new)
        kernel.pivot_root(b".", os.path.join(new + mounts, old))
        os.chdir("/")
        if self._original:
            kernel.unmount(os.path.join(mounts, _LEFT))
        else:
            original = os.path.join(mounts, _ORIGINAL)
            kernel.unmount(original + self._layers.own)  # bound above; here it would prevent views within this one
            kernel.make_read_only(original)

    def _is_uncovered(self, one: Mount) -> bool:
        """Whether a mount is shown uncovered. In a view within a view, /dev/shm comes with /dev."""
        if one.point.startswith(self._base + b"/"):
            return False
        return one.is_kernels or _is_within(one.point, [b"/dev"])

    def _outside(self, point: bytes) -> bytes | None:
        """The mount point outside of all views; None if it exists only in views."""
        if self._original:
            if point == self._original:
                return b"/"
            if not point.startswith(self._original + b"/"):
                return None
            point = point[len(self._original) :]
        return None if point == self._base or point.startswith(self._base + b"/") else point

    def _show(self, one: Mount, inner: list[bytes]) -> None:
        target = self._target(one.point)
        if not os.path.lexists(target):
            return  # a folder that the program has removed
        source = self._source(one.point)
        if not os.path.isdir(source):
            self._show_file(one, source, target)
        elif one.read_only and not self._original:
            self._kernel.bind(source, target, recursive=self._rebuilds)
        else:
            self._cover(one.point, inner)

    def _show_file(self, one: Mount, source: bytes, target: bytes) -> None:
        """Show a file that is a mount point: as a private copy in the covering folder."""
        status = os.stat(source)
        copied = self._layers.copied(os.path.dirname(one.point))
        if not stat.S_ISREG(status.st_mode):
            self._kernel.bind(source, target)
        elif copied and os.path.lexists(os.path.join(copied, os.path.basename(one.point))):
            pass  # the snapshot has it
        elif status.st_size > MOST_COPIED or not os.access(source, os.R_OK):
            self._show_read_only(one.point)
        else:
            self._copy(source, target)

    def _cover(self, point: bytes, inner: list[bytes]) -> None:
        """Put a layer over a folder."""
        within = [one for one in inner if one != point and one.startswith(point.rstrip(b"/") + b"/")]
        if not (self._rebuilds and within):
            self._overlay(point, self._source(point))
            return
        names = {one[len(point.rstrip(b"/")) + 1 :].split(b"/")[0] for one in within}
        lower = self._layers.of(point) + b"/lower"
        os.makedirs(lower)
        late: list[bytes] = []
        folders: list[bytes] = []
        for entry in entries(self._source(point)):
            path = os.path.join(point, entry.name)
            copy = os.path.join(lower, entry.name)
            with contextlib.suppress(FileNotFoundError):  # another process removes it now
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(copy, 0o700)
                    copy_status(entry.path, copy)
                    folders.append(path)
                elif entry.is_symlink():
                    os.symlink(os.readlink(entry.path), copy)
                elif entry.is_file():
                    late += self._copied_below(entry, copy, path)
            # sockets in use are bound below; a pipe or device in such a folder is not shown
        self._overlay(point, lower)
        for path in late:
            self._show_read_only(path)
        mounts = set(inner)
        for path in folders:
            if path not in mounts and os.path.isdir(self._target(path)):
                if os.path.basename(path) in names:
                    self._cover(path, inner)
                    continue
                # If another process removes it now, the layer above shows an empty folder.
                with contextlib.suppress(FileNotFoundError):
                    if os.access(self._source(path), os.X_OK) or os.stat(self._source(path)).st_uid == os.geteuid():
                        self._overlay(path, self._source(path))

    def _copied_below(self, entry: os.DirEntry[bytes], copy: bytes, path: bytes) -> list[bytes]:
        """Copy a file, or return its path if it must be shown read-only instead."""
        readable = os.access(entry.path, os.R_OK)
        if readable and entry.stat().st_size <= MOST_COPIED:
            self._copy(entry.path, copy)
            return []
        with open(copy, "wb"):
            pass
        copy_status(entry.path, copy)
        return [path] if readable else []

    def _overlay(self, point: bytes, source: bytes) -> None:
        own = self._layers.of(point)
        os.makedirs(own + b"/upper")
        os.mkdir(own + b"/work")
        if point.startswith(_SHM):
            os.chmod(own + b"/upper", 0o1777)  # noqa: S103 - as outside
        self._mount_overlay(point, source, own)

    def _mount_overlay(self, point: bytes, source: bytes, own: bytes) -> None:
        copied = self._layers.copied(point)
        copy_status(copied or source, own + b"/upper")
        lowers = [copied, source] if copied else [source]
        if self._rebuilds and not copied:
            copy_foreign_folders(source, own + b"/upper")
        with named_by_descriptor(own + b"/upper", own + b"/work", *lowers) as (upper, work, *below):
            options = b"lowerdir=%s,upperdir=%s,workdir=%s" % (b":".join(below), upper, work)
            options += b",userxattr" if self._rebuilds else b",redirect_dir=on"
            try:
                self._kernel.mount("overlay", self._target(point), options)
            except CallRefused as error:
                raise CannotIsolate(f"cannot cover {os.fsdecode(point)}: {error}") from error

    def _cover_shared_memory(self) -> None:
        """Cover /dev/shm with a layer that has as much room as is free in it."""
        if not os.path.isdir(_SHM):
            return
        own = self._layers.of(_SHM)
        os.makedirs(own)
        free = os.statvfs(_SHM)
        self._kernel.mount("tmpfs", own, b"mode=0700,size=%d" % max(1 << 16, free.f_bavail * free.f_frsize))
        os.mkdir(own + b"/upper")
        os.mkdir(own + b"/work")
        self._mount_overlay(_SHM, _SHM, own)

    def _bind_sockets(self) -> None:
        for path in _sockets():
            target = self._target(path)
            try:
                if stat.S_ISSOCK(os.stat(self._source(path)).st_mode):
                    if not os.path.lexists(target) and self._rebuilds:
                        with open(target, "wb"):
                            pass
                    self._kernel.bind(self._source(path), target)
            except (OSError, CannotIsolate):
                continue  # no process listens there any more, or this user cannot reach it

    def _show_read_only(self, point: bytes) -> None:
        target = self._target(point)
        self._kernel.bind(self._source(point), target)
        self._kernel.make_read_only(target)
        self.not_covered.append(point)

    def _copy(self, source: bytes, target: bytes) -> None:
        shutil.copyfile(source, target)
        copy_status(source, target)

    def _source(self, point: bytes) -> bytes:
        return self._original + point

    def _target(self, point: bytes) -> bytes:
        return self._layers.root + point.rstrip(b"/")


def snapshot(base: str, source: str, name: str) -> str:
    """Copy the present layers of the view `source`; return "" if there is no room for the copy.

    A file that has not changed since an earlier snapshot shares its memory with that snapshot.
    """
    at = os.path.join(os.fsencode(base), _MOUNTS, os.fsencode(source))
    layers, copies = at + b"/layers", os.path.join(at, _COPIES)
    copy = os.path.join(copies, os.fsencode(name))
    if not os.path.isdir(layers):
        return ""
    earlier = sorted(os.listdir(copies)) if os.path.isdir(copies) else []
    try:
        for key in os.listdir(layers):
            if key != _key(_SHM):  # shared by all views
                os.makedirs(copy, exist_ok=True)
                others = [os.path.join(copies, one, key) for one in earlier]
                copy_tree(os.path.join(layers, key, b"upper"), os.path.join(copy, key), others)
    except OSError:
        shutil.rmtree(copy, ignore_errors=True)
        return ""
    return os.fsdecode(copy)


def _sockets() -> list[bytes]:
    """The paths of the sockets that some process listens on."""
    found: set[bytes] = set()
    with contextlib.suppress(OSError), open("/proc/net/unix", "rb") as file:
        for line in file:
            parts = line.rstrip(b"\n").split(maxsplit=7)
            if len(parts) == 8 and parts[7].startswith(b"/"):
                found.add(parts[7])
    return sorted(found)


def _is_within(point: bytes, others: list[bytes]) -> bool:
    return any(point == one or point.startswith(one + b"/") for one in others)


def _key(point: bytes) -> bytes:
    return hashlib.blake2b(point, digest_size=12).hexdigest().encode()


def _room() -> int:
    return max(_SMALLEST_LAYER, (available_memory() or 0) // SHARE_OF_MEMORY)
