"""Bytes that any process of this machine can map: anonymous memory, or a file for larger data.

NOTE [ By reference ]

A buffer is written once and then only read. Where the kernel supports it, we seal the buffer, so that
no process can write to it. A pickle of a buffer is only a reference:

- to a process that is being started: a descriptor
- of a buffer on disk: the path
- otherwise: `/proc/<pid>/fd/<n>` of a process that holds the buffer; the receiver opens it and checks
  that it is the same file
- to another machine, which cannot open any of these: the content itself

A process that gets the same reference twice, or inherits the buffer by fork, uses one `Buffer` object.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import mmap
import os
import pickle
import secrets
import stat
import struct
import time
import weakref
from multiprocessing import context as mp_context
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from unjam.system import memory
from unjam.system.memory import MemoryMapping, ReceivedMemory, address_of
from unjam.system.memory_limits import available_memory
from unjam.system.owned_fd import OwnedFd

if TYPE_CHECKING:
    from typing_extensions import Self

ALIGNMENT = 64
MAGIC = b"unjam\x00\x002"
# madvise: map the existing pages for reading, without copies
POPULATE_READ = 22
# how many bytes a writer writes between two checks of the free memory, and how many must stay free
LOOK_EVERY, KEEP_FREE = 64 << 20, 64 << 20
# largest head of a file; it holds the keys of records, and nothing that grows with the items
MOST_HEAD = 64 << 20
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")
_known: weakref.WeakValueDictionary[str, Buffer] = weakref.WeakValueDictionary()


class CopiedByReference:
    """An immutable object: copies of it are the object itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class GoneError(RuntimeError):
    """A shared buffer no longer exists: its process has ended, or its file was replaced."""


class Buffer:
    """Bytes in shared memory or in a file, read-only. See NOTE [ By reference ]."""

    __slots__ = ("__weakref__", "_fd", "_maps", "_private", "name", "path", "present", "size")

    def __init__(self, fd: OwnedFd, size: int, name: str, path: str | None = None) -> None:
        self._fd = fd
        self.size = size
        self.name = name
        self.path = path
        self._maps: mmap.mmap | None = None
        self._private: weakref.ref[MemoryMapping] | None = None
        # true in the process that wrote it: map all pages at once, so that they count as its memory
        self.present = False
        _known[name] = self

    @property
    def bytes(self) -> Any:
        """The content. Slices of it are `bytes`."""
        if self._maps is None:
            # MAP_PRIVATE, because many kernels refuse MAP_SHARED for sealed memory, even to read.
            # Processes share private pages, too, as long as none writes to them.
            self._maps = mmap.mmap(self._fd, self.size, mmap.MAP_PRIVATE, mmap.PROT_READ)
            if self.present:
                with contextlib.suppress(OSError, ValueError):  # kernels before 5.14 do not know it
                    self._maps.madvise(POPULATE_READ)
        return self._maps

    def words(self, at: int, count: int, kind: str = "q") -> memoryview:
        """`count` numbers of the content, starting at byte `at`."""
        size = count * struct.calcsize(kind)
        if type(at) is not int or type(count) is not int or min(at, count) < 0 or at + size > self.size:
            raise ValueError(f"{self.path} is damaged: {count} numbers at {at} extend past its end")
        return self._view()[at : at + size].cast(kind) if size else memoryview(b"")

    def _view(self) -> Any:
        return memoryview(self.bytes)

    def private(self) -> MemoryMapping:
        """A writable mapping of the content, for arrays. Writes stay in this process."""
        mapping = None if self._private is None else self._private()
        if mapping is None:
            mapping = MemoryMapping(self._fd, self.size, private=True)
            self._private = weakref.ref(mapping)
            if self.present:
                mapping.advise(POPULATE_READ)
        return mapping

    def __reduce__(self) -> Any:
        if self.path is not None:
            return _from_file, (self.name, self.size, self.path)
        if mp_context.get_spawning_popen() is not None:
            return _from_descriptor, (self.name, self.size, reduction.DupFd(self._fd))
        status = os.fstat(self._fd)
        _keep_for_a_while(self)
        return _from_process, (self.name, self.size, os.getpid(), int(self._fd), (status.st_dev, status.st_ino))


class ReceivedBuffer(Buffer):
    """A buffer whose bytes came from another machine, in the memory of the pickle."""

    __slots__ = ("_content",)

    def __init__(self, view: memoryview, size: int, name: str) -> None:
        super().__init__(OwnedFd(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)), size, name)
        self._content = view.cast("B")

    @property
    @override
    def bytes(self) -> Any:
        characters: Any = (ctypes.c_char * self.size).from_address(address_of(self._content))
        characters.keeps = self._content
        return characters

    @override
    def _view(self) -> Any:
        return self._content

    @override
    def private(self) -> Any:
        # the pickle's memory is private to this process
        return ReceivedMemory(self._content)

    def __reduce__(self) -> Any:
        return reduce_to_content(self)


def reduce_to_content(buffer: Buffer) -> Any:
    """Reduce a buffer for another machine: to its content."""
    return received_buffer, (buffer.name, buffer.size, pickle.PickleBuffer(memoryview(buffer.bytes).cast("B")))


def received_buffer(name: str, size: int, content: Any) -> Buffer:
    """Rebuild what `reduce_to_content` reduced."""
    return _known.get(name) or ReceivedBuffer(memoryview(content), size, name)


# buffers that we keep for a while after pickling: the reference may still be in a queue when this process
# drops the buffer
_recently_pickled: list[tuple[float, Buffer]] = []
KEEP_SECONDS = 30.0


def _keep_for_a_while(buffer: Buffer) -> None:
    """Keep a buffer alive for `KEEP_SECONDS`."""
    _drop_expired()
    _recently_pickled.append((time.monotonic(), buffer))
    if _drop_expired not in gc.callbacks:
        gc.callbacks.append(_drop_expired)


def _drop_expired(*_: Any) -> None:
    """Drop buffers that were kept long enough; the garbage collector calls this, too."""
    now = time.monotonic()
    while _recently_pickled and now - _recently_pickled[0][0] > KEEP_SECONDS:
        _recently_pickled.pop(0)
    if not _recently_pickled and _drop_expired in gc.callbacks:
        gc.callbacks.remove(_drop_expired)


def _from_descriptor(name: str, size: int, descriptor: Any) -> Buffer:
    fd = OwnedFd(descriptor.detach())
    return _known.get(name) or Buffer(fd, size, name)


def _from_process(name: str, size: int, pid: int, fd: int, identity: tuple[int, int]) -> Buffer:
    known = _known.get(name)
    if known is not None:
        return known
    try:
        taken = OwnedFd(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise GoneError(
            f"cannot open the {size} bytes that process {pid} shared ({error.strerror}): the process has ended, has released them, "
            "or runs on another machine or as another user"
        ) from error
    status = os.fstat(taken)
    if (status.st_dev, status.st_ino) != identity or status.st_size != size:
        raise GoneError(
            f"process {pid} has released the {size} bytes that it shared, or its pid now belongs to another process"
        )
    return Buffer(taken, size, name)


def _from_file(name: str, size: int, path: str) -> Buffer:
    return _known.get(name) or _open(path, name, size)


def _open(path: str, name: str, size: int) -> Buffer:
    try:
        fd = OwnedFd(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise GoneError(f"cannot open {path}, the file of shared items ({error.strerror})") from error
    if _file_name(fd) != name or os.fstat(fd).st_size != size:
        raise GoneError(f"{path} is not the file that was shared: it has been rewritten")
    return Buffer(fd, size, name, path)


def open_file(path: str | os.PathLike[str], what: str = "") -> tuple[Buffer, dict[str, Any]]:
    """The buffer in a file, and the head at its end. `what`: the kind that the caller expects."""
    where = os.path.abspath(os.fspath(path))
    with open(where, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{where} is not a regular file")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 16))
        tail = file.read(16)
        if len(tail) != 16 or tail[8:] != MAGIC:
            raise ValueError(f"{where} was not written by unjam, or is incomplete")
        length = int.from_bytes(tail[:8], "little")
        if length > min(size - 16, MOST_HEAD):
            raise ValueError(f"{where} is damaged: its header claims {length} bytes")
        file.seek(size - 16 - length)
        try:
            head = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is damaged: its header cannot be read") from error
        name = _file_name(file.fileno())
    if not isinstance(head, dict) or head.get("what") not in ("list", "dict", "array"):
        raise ValueError(f"{where} is damaged: its header does not specify what the file contains")
    if what and head["what"] != what:
        raise ValueError(f"{where} contains a shared {head['what']}, not {'an' if what == 'array' else 'a'} {what}")
    return _known.get(name) or _open(where, name, size), head


def _file_name(fd: int) -> str:
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"


class Writer:
    """Appends to a new buffer. Without `finish`, everything is discarded."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else os.path.abspath(os.fspath(path))
        self.at = 0
        self._checked_at = 0
        self._fd = OwnedFd(self._create())

    def _create(self) -> int:
        if self.path is not None:
            self._temporary = os.path.join(os.path.dirname(self.path), f".unjam-{secrets.token_hex(8)}")
            fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self._discard = weakref.finalize(self, _unlink, self._temporary)
            return fd
        sealable = memory.create_sealable("shared")
        return memory.create(0, "shared") if sealable is None else sealable

    def write(self, data: Any) -> int:
        """Append bytes and return the offset at which they begin."""
        view, began = memoryview(data).cast("B"), self.at
        while len(view):
            if self.path is None and self.at + len(view) - self._checked_at > LOOK_EVERY:
                self._check_memory(len(view))
            written = os.pwrite(self._fd, view[: 256 << 20], self.at)
            self.at += written
            view = view[written:]
        return began

    def _check_memory(self, coming: int) -> None:
        """Raise an error before memory runs out: the kernel would kill this process instead."""
        self._checked_at = self.at
        left = available_memory()
        if left is not None and left < coming + KEEP_FREE:
            raise MemoryError(
                f"{self.at + coming} bytes of shared items do not fit into the available memory ({left} bytes); "
                "give path=... to keep them in a file"
            )

    def align(self) -> int:
        """Pad to the next offset where numbers may begin, and return it."""
        self.write(bytes(-self.at % ALIGNMENT))
        return self.at

    def peek(self) -> Buffer:
        """What has been written so far, as a buffer to read from."""
        os.ftruncate(self._fd, max(1, self.at))
        return Buffer(OwnedFd(os.dup(self._fd)), max(1, self.at), secrets.token_hex(8))

    def again(self, keep: int) -> Writer:
        """A new writer with the same path, which begins with the first `keep` bytes of this one."""
        writer = Writer(self.path)
        writer.write(memoryview(self.peek().bytes)[:keep])
        return writer

    def finish(self, head: dict[str, Any]) -> Buffer:
        """Seal the content, or write the file's end, and return the buffer."""
        if self.path is None:
            os.ftruncate(self._fd, max(1, self.at))
            with contextlib.suppress(OSError, AttributeError, ImportError):  # only Linux has seals
                import fcntl  # noqa: PLC0415 - not on every system

                fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, sum(getattr(fcntl, seal) for seal in _SEALS))
            buffer = Buffer(self._fd, max(1, self.at), secrets.token_hex(8))
            buffer.present = True
            return buffer
        text = json.dumps(head).encode()
        self.write(text)
        self.write(len(text).to_bytes(8, "little") + MAGIC)
        os.replace(self._temporary, self.path)
        self._discard.detach()
        return open_file(self.path)[0]


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
