"""The context of an exception: open files and sockets that its frames can reach, limits, and what a worker inherited."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import tempfile
import traceback
import types
from collections.abc import Iterator
from typing import Any

from unjam.doctor.check.inventory import Inventory, descriptor, names_in
from unjam.doctor.check.target import file_events
from unjam.doctor.facts.faults import Resource
from unjam.doctor.facts.trial import Place
from unjam.system.file_owner import is_users
from unjam.system.proc_files import descriptor_flags, descriptor_target, descriptors

MOST_FRAMES, MOST_PARTS, DEEPEST = 12, 400, 3
# types whose objects hold no files
_LEAVES = (str, bytes, int, float, type(None), type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
at_start: dict[int, tuple[int, int]] = {}  # the descriptors that were open when this worker started


def note_open_descriptors() -> None:
    """Remember which descriptors are open; to be called in a worker before its first sample."""
    at_start.clear()
    for fd in descriptors():
        known = _identity(fd) if fd > 2 else None
        if known is not None:
            at_start[fd] = known


def writable_files(inventory: Inventory) -> dict[str, int]:
    """The files that a dataset holds open for writing: path and size."""
    found = {}
    for one in inventory.found.values():
        fd = descriptor(one.value)
        if fd is None or not stat.S_ISREG(os.fstat(fd).st_mode):
            continue
        flags = descriptor_flags(fd)
        if flags & (os.O_WRONLY | os.O_RDWR) and not flags & os.O_APPEND:
            found[descriptor_target(fd)] = os.fstat(fd).st_size
    return found


def writes(dataset: Any) -> bool:
    """Whether the code that loads samples, or a function that it calls by name, writes to files."""
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


def context_of(error: BaseException) -> dict[str, Any]:
    """The context of an exception, as fields of WatchedFailure."""
    found: dict[str, Any] = {}
    number = getattr(error, "errno", None)
    if isinstance(number, int):
        found["errno"] = number
    elif isinstance(error, MemoryError):
        found["errno"] = errno.ENOMEM
    if isinstance(error, LookupError) and error.args and type(error.args[0]).__name__ == "ContextVar":
        found["context"] = str(error.args[0].name)
    root = _root(error)
    if root is not None:
        found["root"] = f"{type(root).__qualname__}: {root}"[:300]
        lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(root.__traceback__)]
        found["root_at"] = next((Place(file, line) for file, line in reversed(lines) if is_users(file)), None)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    with contextlib.suppress(Exception):  # code of the user's objects may run
        found["unpickled"] = _unpickled(frames)
        found["reach"] = _resources(frames)
    if found.get("errno") in _LIMITED or any(os.strerror(one) in str(error) for one in _LIMITED):
        found["limits"] = _limits()
        found["full"] = _full_file_systems(getattr(error, "filename", None))
    return {name: value for name, value in found.items() if value}


# errors that mean that a limit is reached
_LIMITED = (errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN)


def _limits() -> dict[str, int]:
    """The limits of this process that are not infinite."""
    import resource  # noqa: PLC0415 - POSIX only

    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    values = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
    return {name: value for name, value in values.items() if value != resource.RLIM_INFINITY}


def _full_file_systems(filename: Any) -> tuple[tuple[str, str], ...]:
    """The file systems without free space or inodes: path, what is used up."""
    found = []
    folder = os.path.dirname(os.path.abspath(os.fsdecode(filename) if isinstance(filename, (str, bytes)) else ""))
    for path in dict.fromkeys((folder, os.getcwd(), tempfile.gettempdir(), "/dev/shm")):
        try:
            room = os.statvfs(path)
        except OSError:
            continue
        if room.f_files and not room.f_favail:
            found.append((path, f"all {room.f_files:,} inodes"))
        elif room.f_bavail * room.f_frsize < 1 << 20:
            found.append((path, f"all {room.f_blocks * room.f_frsize / 1e6:,.0f} MB"))
    return tuple(found)


def _unpickled(frames: list[Any]) -> str:
    """The user's class or function that ran while an object was unpickled."""
    inside = False
    for frame in frames:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if (name in ("get", "recv") and "multiprocessing" in file) or name in ("loads", "rebuild_storage_fd"):
            inside = True
        elif inside and is_users(file):
            owner = frame.f_locals.get("self")
            return type(owner).__qualname__ if owner is not None else name
    return ""


def _resources(frames: list[Any]) -> tuple[Resource, ...]:
    users = [frame for frame in frames if is_users(frame.f_code.co_filename)][-MOST_FRAMES:]
    numbers = _by_target()
    found: dict[int, Resource] = {}
    for frame in reversed(users):
        for path, value in _parts(frame):
            with contextlib.suppress(Exception):  # an object that fails when it is asked
                for fd, target in _descriptors_of(value, numbers):
                    if fd not in found:
                        line = file_events.opened_at(target)
                        found[fd] = Resource(path, _kind(fd), target, _is_inherited(fd), line)
    return tuple(found.values())[:12]


def _parts(frame: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a frame's variables reach, each with its path in the program."""
    waiting = [(name, value, 0) for name, value in frame.f_locals.items()]
    waiting += [(name, frame.f_globals[name], 0) for name in frame.f_code.co_names if name in frame.f_globals]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_PARTS:
        path, value, depth = waiting.pop(0)
        if id(value) in seen or isinstance(value, _LEAVES):
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


def _descriptors_of(value: Any, numbers: dict[str, int]) -> Iterator[tuple[int, str]]:
    fd = descriptor(value)
    if fd is not None:
        yield fd, descriptor_target(fd)
        return
    for name in ("filename", "name", "path"):  # objects of C libraries do not expose their descriptor
        try:
            known = getattr(value, name, None)
        except Exception:  # noqa: BLE001, S112 - a user's property, or a closed file
            continue
        if isinstance(known, (str, os.PathLike)) and not isinstance(value, os.PathLike):
            path = os.path.abspath(os.fspath(known))
            if path in numbers:
                yield numbers[path], path


def _by_target() -> dict[str, int]:
    return {
        target: fd
        for fd, target in descriptors().items()
        if fd > 2 and target.startswith("/") and "/dev/" not in target
    }


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
    """The connections of a dataset that were opened before this worker started: descriptor and target."""
    found = {}
    for one in inventory.found.values():
        fd = descriptor(one.value)
        if fd is not None and _kind(fd) == "socket" and descriptor_target(fd) == descriptor_target(fd, os.getppid()):
            found[fd] = descriptor_target(fd)
    return found


def traffic(fd: int) -> int:
    """The bytes that all processes have sent and received on a TCP connection so far."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
        known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(known) >= BYTES_AT + 16:
            return sum(struct.unpack_from("QQ", known, BYTES_AT))
    return 0


BYTES_AT = 120  # of tcpi_bytes_acked and tcpi_bytes_received in Linux's struct tcp_info


def _root(error: BaseException) -> BaseException | None:
    """The first exception in the chain of a RecursionError, if a handler called the failing function again."""
    if not isinstance(error, RecursionError):
        return None
    root: BaseException = error
    for _ in range(DEEPEST_CHAIN):
        if root.__context__ is None:
            break
        root = root.__context__
    return None if isinstance(root, RecursionError) else root


DEEPEST_CHAIN = 20_000
