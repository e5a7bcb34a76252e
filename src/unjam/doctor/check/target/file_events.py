"""Records the program's file operations from Python's audit events: which line opened, wrote, moved or removed which path."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from unjam.doctor.check.event_log import worker_number
from unjam.doctor.check.target.observer import Observer, users_line
from unjam.doctor.facts.faults import FileOperation, LimitChange, LockFile
from unjam.doctor.facts.trial import Place
from unjam.system.import_hook import after_import

_CHANGES = {"os.remove": "removed", "os.rmdir": "removed", "shutil.rmtree": "removed", "os.rename": "moved", "os.chdir": "entered",
            "os.truncate": "truncated"}  # fmt: skip
MOST_EVENTS = 400
MOST_PATHS = 2000
MOST_OPENED, MOST_READ = 8, 20
MAPPABLE = 4096  # bytes; smaller files are hardly ever mapped into memory
_IGNORED = (".py", ".pyc", ".pyi", ".so", ".dist-info")

opened: dict[str, Place] = {}  # absolute path -> the line that opened it last
counts: Counter[Place] = Counter()  # how often each line opened a file
exclusive: dict[str, Place | None] = {}  # files that this process created with O_EXCL, and the line
locks = False  # whether this process has locked a file


@dataclass
class SampleFiles:
    """What one sample does with files."""

    collects: bool  # whether to fill `opened`
    opened: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)  # without files that it wrote before
    # line, whether it read the file afterwards
    written: dict[str, tuple[Place | None, bool]] = field(default_factory=dict)


_sample: SampleFiles | None = None  # the sample that is being loaded


def begin_sample(*, collects: bool) -> SampleFiles:
    """Start recording the file operations of a sample."""
    global _sample  # noqa: PLW0603 - one for each process
    _sample = SampleFiles(collects)
    return _sample


def end_sample() -> None:
    """Stop recording the file operations of a sample."""
    global _sample  # noqa: PLW0603 - as above
    _sample = None


def opened_at(target: str) -> Place | None:
    """The line that opened a file, by its path."""
    return opened.get(target.removesuffix(" (deleted)"))


def busiest_line() -> Place | None:
    """The line that opened most files."""
    return next((place for place, _ in counts.most_common(1)), None)


# -- audit events ------------------------------------------------------------------------------------------------------


def record_file_events(observer: Observer) -> None:
    """Record from now on what the program does with files and folders."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in ("fcntl.flock", "fcntl.lockf"):
            global locks  # noqa: PLW0603 - one for each process
            locks = True
        elif observer.active and (event in _CHANGES or event in ("open", "subprocess.Popen", "resource.setrlimit")):
            with contextlib.suppress(Exception):
                for fact in _facts_of(event, arguments):
                    if isinstance(fact, LimitChange) or count <= MOST_EVENTS:
                        count += 1
                        observer.record(fact)

    sys.addaudithook(hook)
    after_import("multiprocessing.shared_memory", functools.partial(_patch_shared_memory, observer=observer))


def _facts_of(event: str, arguments: tuple[Any, ...]) -> list[FileOperation | LockFile | LimitChange]:
    """Note an audit event, and return the facts to record."""
    if event == "open":
        _note_open(arguments)
        path, _, flags = arguments
        place = users_line() if _truncates(path, flags) or _is_exclusive(flags) else None
        found: list[FileOperation | LockFile | LimitChange] = []
        if place is not None and _truncates(path, flags):
            found.append(_file_operation("truncated", _absolute(path), place))
        return [*found, LockFile(_absolute(path), os.getpid(), place)] if _is_exclusive(flags) else found
    if event == "subprocess.Popen":
        _note_command(arguments[1])
        return []
    place = users_line()
    if event == "resource.setrlimit":
        import resource  # noqa: PLC0415 - it was imported by the program

        names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        name = next((name for name in names if getattr(resource, name) == arguments[0]), str(arguments[0]))
        return [LimitChange(name, place)]
    full = _absolute(*arguments[: 1 if event == "os.truncate" else 2])
    # a function registered with atexit is not called by a line of the program
    return [_file_operation(_CHANGES[event], full, place)] if full and (place or event == "shutil.rmtree") else []


def _file_operation(kind: str, path: str, place: Place | None) -> FileOperation:
    return FileOperation(kind, path, place, time.monotonic(), worker_number(), os.getpid())


def _patch_shared_memory(module: ModuleType, observer: Observer) -> None:
    """Record which line removes a block of shared memory: there is no audit event for it."""
    unlink = module.SharedMemory.unlink

    @functools.wraps(unlink)
    def unlinked(this: Any) -> None:
        with contextlib.suppress(Exception):
            observer.record(_file_operation("removed", f"/{this.name}", users_line()))
        unlink(this)

    module.SharedMemory.unlink = unlinked


def _note_open(arguments: tuple[Any, ...]) -> None:
    path, _, flags = arguments
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    text = os.fsdecode(path)
    full = os.path.abspath(text)
    if _sample is not None and isinstance(flags, int):
        _note_use(_sample, full, flags)
    if text.endswith(_IGNORED) or text.startswith(("/proc/", "/dev/", "/sys/")):
        return
    if _sample is not None and _sample.collects and len(_sample.opened) < MOST_OPENED and not os.path.isdir(text):
        _sample.opened.append(text)
    if len(opened) > MOST_PATHS and len(counts) > MOST_PATHS:
        return
    place = users_line()
    if _is_exclusive(flags):
        exclusive[full] = place
    if place is not None:
        opened[full] = place
        counts[place] += 1


def _note_use(sample: SampleFiles, path: str, flags: int) -> None:
    """Note that a sample reads or writes a file."""
    known = sample.written
    if flags & (os.O_WRONLY | os.O_RDWR):
        if (
            not flags & os.O_APPEND
            and flags & (os.O_CREAT | os.O_TRUNC)
            and len(known) < MOST_PATHS
            and path not in known
        ):
            known[path] = (users_line(), False)
    elif path in known:
        known[path] = (known[path][0], True)
    elif len(sample.read) < MOST_READ:
        sample.read.append(path)


def _note_command(words: Any) -> None:
    """Note that a sample starts another program, which may write the files named in its arguments."""
    if _sample is not None and isinstance(words, (list, tuple)):
        for word in words[1:40]:
            if isinstance(word, (str, bytes, os.PathLike)) and (text := os.fsdecode(word)).startswith("/"):
                _sample.written.setdefault(text, (users_line(), False))


def _is_exclusive(flags: Any) -> bool:
    return isinstance(flags, int) and bool(flags & os.O_EXCL and flags & os.O_CREAT)


def _truncates(path: Any, flags: Any) -> bool:
    """Whether an `open` empties a file that is large enough to be mapped."""
    if not isinstance(flags, int) or not flags & os.O_TRUNC or not isinstance(path, (str, bytes, os.PathLike)):
        return False
    try:
        return os.stat(path).st_size > MAPPABLE
    except OSError:
        return False


def _absolute(path: Any, folder: Any = -1) -> str:
    """The absolute path of a path that may be relative to the current folder or to an open one."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    return os.path.abspath(text)
