"""What a failing line can reach: open files, sockets and databases, and whether they were open before the worker began."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import traceback
import types
from collections.abc import Iterator
from typing import Any

from unjam.doctor.check.inventory import Inventory, descriptor, flags_of, names_in
from unjam.doctor.check.target import openers
from unjam.system.file_owner import is_users

MOST_FRAMES, MOST_PARTS, DEEPEST = 12, 400, 3
_NO_HOLDERS = (
    str,
    bytes,
    int,
    float,
    type(None),
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
)
at_start: dict[int, tuple[int, int]] = {}  # the descriptors that this worker began with


def note_start() -> None:
    """Remember what is open: this process is a worker, and loads its first sample now."""
    at_start.clear()
    for fd in _open_descriptors():
        known = _identity(fd)
        if known is not None:
            at_start[fd] = known


def writable_files(inventory: Inventory) -> dict[str, int]:
    """The files that a dataset holds open for writing, and was given so by the program: path and size."""
    found = {}
    for one in inventory.found.values():
        fd = descriptor(one.obj)
        if fd is None or not stat.S_ISREG(os.fstat(fd).st_mode):
            continue
        flags = flags_of(fd)
        if flags & (os.O_WRONLY | os.O_RDWR) and not flags & os.O_APPEND:
            found[_target(fd)] = os.fstat(fd).st_size
    return found


def writes(dataset: Any) -> bool:
    """Whether the code that loads samples, and what it calls by name, writes to files."""
    from unjam.doctor.check.target.source_reading import loading_functions  # noqa: PLC0415 - few programs need it

    functions = {one.__name__: set(names_in(one.__code__)) for one in loading_functions({"dataset": dataset})}
    waiting: list[str] = [name for name in ("__getitem__", "__getitems__", "__iter__", "__next__") if name in functions]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if functions[name] & _WRITES:
            return True
        waiting += [one for one in functions[name] if one in functions]
    return False


_WRITES = {"write", "writelines", "writerow", "writerows", "dump", "tofile", "print", "savetxt", "to_csv"}


def size_of(path: str) -> int:
    """The size of a file; 0 if it is gone."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def facts_of(error: BaseException) -> dict[str, Any]:
    """What an exception and its frames say about the process that it was raised in."""
    found: dict[str, Any] = {}
    number = getattr(error, "errno", None)
    if isinstance(number, int):
        found["errno"] = number
    elif isinstance(error, MemoryError):
        found["errno"] = errno.ENOMEM
    name = getattr(error, "filename", None)
    if isinstance(name, (str, bytes)):
        found["filename"] = os.fsdecode(name)
    if isinstance(error, LookupError) and error.args and type(error.args[0]).__name__ == "ContextVar":
        found["context"] = str(error.args[0].name)
    root = _root(error)
    if root is not None:
        found["root"] = f"{type(root).__qualname__}: {root}"[:300]
        places = [frame for frame in _frames(root) if is_users(frame.f_code.co_filename)]
        lines = [one.lineno for one in traceback.extract_tb(root.__traceback__) if is_users(one.filename)]
        if places and lines:
            found["root_at"] = [places[-1].f_code.co_filename, lines[-1]]
    frames = list(_frames(error))
    with contextlib.suppress(Exception):  # code of the user's objects may run
        found["unpickled"] = _unpickled(frames)
        found["reach"] = _resources(frames)
    if found.get("errno") in _LIMITED or any(os.strerror(one) in str(error) for one in _LIMITED):
        found["limits"] = _limits()
        found["full"] = _full(found.get("filename", ""))
    return {name: value for name, value in found.items() if value}


# errors that say that something is used up
_LIMITED = (errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN)


def _limits() -> dict[str, int]:
    """The limits of this process that are not infinite."""
    import resource  # noqa: PLC0415 - POSIX only

    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    values = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
    return {name: value for name, value in values.items() if value != resource.RLIM_INFINITY}


def _full(filename: str) -> list[list[str]]:
    """The places for files that have no room, or no number for another file: path, what is used up."""
    import tempfile  # noqa: PLC0415 - only here

    found = []
    for path in dict.fromkeys(
        (os.path.dirname(os.path.abspath(filename)), os.getcwd(), tempfile.gettempdir(), "/dev/shm")
    ):
        try:
            room = os.statvfs(path)
        except OSError:
            continue
        if room.f_files and not room.f_favail:
            found.append([path, f"all {room.f_files:,} inodes"])
        elif room.f_bavail * room.f_frsize < 1 << 20:
            found.append([path, f"all {room.f_blocks * room.f_frsize / 1e6:,.0f} MB"])
    return found


def _frames(error: BaseException) -> Iterator[Any]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _unpickled(frames: list[Any]) -> str:
    """The file of the user's that was run while an object was unpickled, or the class that failed."""
    inside = False
    for frame in frames:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if (name in ("get", "recv") and "multiprocessing" in file) or name in ("loads", "rebuild_storage_fd"):
            inside = True
        elif inside and is_users(file):
            owner = frame.f_locals.get("self")
            return type(owner).__qualname__ if owner is not None else name
    return ""


def _resources(frames: list[Any]) -> list[dict[str, Any]]:
    users = [frame for frame in frames if is_users(frame.f_code.co_filename)][-MOST_FRAMES:]
    numbers = _by_target()
    found: dict[str, dict[str, Any]] = {}
    for frame in reversed(users):
        for path, value in _parts(frame):
            for fd, target in _known_descriptors(value, numbers):
                if str(fd) not in found:
                    place = openers.line_of(target)
                    found[str(fd)] = {
                        "path": path, "kind": _kind(fd), "target": target, "inherited": _is_inherited(fd),
                        "file": place.file if place else "", "line": place.line if place else 0,
                    }  # fmt: skip
    return list(found.values())[:12]


def _parts(frame: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a frame's names reach, with what the program calls them."""
    names = [(name, value) for name, value in frame.f_locals.items()]
    names += [(name, frame.f_globals[name]) for name in frame.f_code.co_names if name in frame.f_globals]
    waiting = [(name, value, 0) for name, value in names]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_PARTS:
        path, value, depth = waiting.pop(0)
        if id(value) in seen or isinstance(value, _NO_HOLDERS):
            continue
        seen.add(id(value))
        yield path, value
        if depth >= DEEPEST or type(value).__module__.startswith(("torch.nn", "numpy", "pandas")):
            continue
        if isinstance(value, dict):
            waiting += [(f"{path}[{key!r}]", one, depth + 1) for key, one in list(value.items())[:20]]
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{path}[{at}]", one, depth + 1) for at, one in enumerate(value[:20])]
        else:
            own = getattr(value, "__dict__", None)
            if isinstance(own, dict):
                waiting += [(f"{path}.{name}", one, depth + 1) for name, one in list(own.items())[:40]]


def _known_descriptors(value: Any, numbers: dict[str, int]) -> list[tuple[int, str]]:
    try:
        return list(_descriptors_of(value, numbers))
    except Exception:  # noqa: BLE001 - an object that fails when it is asked
        return []


def _descriptors_of(value: Any, numbers: dict[str, int]) -> Iterator[tuple[int, str]]:
    fd = descriptor(value)
    if fd is not None:
        yield fd, _target(fd)
        return
    for name in ("filename", "name", "path"):  # libraries written in C keep the descriptor to themselves
        try:
            known = getattr(value, name, None)
        except Exception:  # noqa: BLE001, S112 - a property of the user's, or a closed file
            continue
        if isinstance(known, (str, os.PathLike)) and not isinstance(value, os.PathLike):
            path = os.path.abspath(os.fspath(known))
            if path in numbers:
                yield numbers[path], path


def _by_target() -> dict[str, int]:
    return {
        target: fd for fd in _open_descriptors() if (target := _target(fd)).startswith("/") and "/dev/" not in target
    }


def _open_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    except OSError:
        return []


def _target(fd: int, pid: int = 0) -> str:
    try:
        return os.readlink(f"/proc/{pid or 'self'}/fd/{fd}")
    except OSError:
        return ""


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_inherited(fd: int) -> bool:
    known = at_start.get(fd)
    return known is not None and known == _identity(fd)


def _kind(fd: int) -> str:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return "file"
    return "socket" if stat.S_ISSOCK(mode) else "pipe" if stat.S_ISFIFO(mode) else "file"


def inherited_connections(inventory: Inventory) -> dict[int, str]:
    """The TCP connections that a dataset holds and that were open before this worker began: descriptor and target."""
    found = {}
    for one in inventory.found.values():
        fd = descriptor(one.obj)
        if fd is not None and _kind(fd) == "socket" and _target(fd) == _target(fd, os.getppid()):
            found[fd] = _target(fd)
    return found


def traffic(fd: int) -> int:
    """The bytes that went through a TCP connection so far, whoever sent or received them."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
        known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(known) >= BYTES_AT + 16:
            return sum(struct.unpack_from("QQ", known, BYTES_AT))
    return 0


BYTES_AT = 120  # of tcpi_bytes_acked and tcpi_bytes_received in Linux's struct tcp_info


def _root(error: BaseException) -> BaseException | None:
    """The exception that was being handled when a RecursionError came: the handler had called the function again."""
    root: BaseException | None = error
    for _ in range(DEEPEST_CHAIN):
        inner = root.__context__ if root is not None else None
        if inner is None:
            break
        root = inner
    return (
        root
        if isinstance(error, RecursionError) and root is not error and not isinstance(root, RecursionError)
        else None
    )


DEEPEST_CHAIN = 20_000
