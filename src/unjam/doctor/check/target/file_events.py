"""Records what the program does with files, from Python's audit events: which line opened, wrote, moved or removed which path."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections import Counter
from types import ModuleType
from typing import Any

from unjam.doctor.check.target.observer import Observer, users_line, worker_number
from unjam.doctor.facts.faults import Deed, LimitSet, LockFile
from unjam.doctor.facts.trial import Place
from unjam.system.import_hook import after_import

_CHANGES = {"os.remove": "removed", "os.rmdir": "removed", "shutil.rmtree": "removed", "os.rename": "moved", "os.chdir": "entered",
            "os.truncate": "cut"}  # fmt: skip
MOST_EVENTS = 400
MOST_PATHS = 2000
MOST_READ = 20
MAPPABLE = 4096  # bytes; smaller files are hardly ever mapped into memory
_IGNORED = (".py", ".pyc", ".pyi", ".so", ".dist-info")

opened: dict[str, Place] = {}  # absolute path -> the line that opened it last
counts: Counter[Place] = Counter()  # how often each line opened a file
exclusive: dict[str, Place | None] = {}  # files that were created with O_EXCL, which only one process can do
_collected: list[list[str]] = []  # where the paths that are opened now go

# -- what one sample does with files -----------------------------------------------------------------------------------

locks = False  # whether this process has locked a file
# of the current sample: the paths that it wrote, by which line, and whether it has read them since; those that it only read
_sample: list[dict[str, tuple[Place | None, bool]]] = []
_read: list[str] = []


def begin_sample() -> None:
    """Forget the files of the last sample: another one begins."""
    _sample[:] = [{}]
    _read.clear()


def files_read() -> list[str]:
    """The files that the current sample has read and not written."""
    return list(_read)


def end_sample() -> list[tuple[str, Place | None, bool]]:
    """The files that the sample wrote: path, line, and whether the sample read the file afterwards."""
    written = [(path, place, is_read) for path, (place, is_read) in _sample[0].items()] if _sample else []
    _sample.clear()
    return written


def line_of(target: str) -> Place | None:
    """The line that opened a file, by its path."""
    return opened.get(target.removesuffix(" (deleted)"))


def start_collecting() -> list[str]:
    """Return a list that receives the paths opened from now on."""
    _collected[:] = [[]]
    return _collected[0]


def stop_collecting() -> None:
    """End what `start_collecting` began."""
    _collected.clear()


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
                    if isinstance(fact, LimitSet) or count <= MOST_EVENTS:
                        count += 1
                        observer.record(fact)

    sys.addaudithook(hook)
    after_import("multiprocessing.shared_memory", functools.partial(_patch_shared_memory, observer=observer))


def _facts_of(event: str, arguments: tuple[Any, ...]) -> list[Deed | LockFile | LimitSet]:
    """Note what an audit event says, and return what is to be recorded of it."""
    if event == "open":
        _note_open(arguments)
        path, _, flags = arguments
        place = users_line() if _truncates(path, flags) or _is_exclusive(flags) else None
        found: list[Deed | LockFile | LimitSet] = []
        if place is not None and _truncates(path, flags):
            found.append(_deed("cut", _full(path), place))
        return [*found, LockFile(_full(path), os.getpid(), place)] if _is_exclusive(flags) else found
    if event == "subprocess.Popen":
        _note_command(arguments[1])
        return []
    place = users_line()
    if event == "resource.setrlimit":
        import resource  # noqa: PLC0415 - it was imported by the program

        names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        name = next((name for name in names if getattr(resource, name) == arguments[0]), str(arguments[0]))
        return [LimitSet(name, int(arguments[-1][0]), place)]
    full = _full(*arguments[: 1 if event == "os.truncate" else 2])
    # no line of the program calls a function that is registered with atexit
    return [_deed(_CHANGES[event], full, place)] if full and (place or event == "shutil.rmtree") else []


def _deed(done: str, path: str, place: Place | None) -> Deed:
    return Deed(done, path, place, time.monotonic(), worker_number(), os.getpid())


def _patch_shared_memory(module: ModuleType, observer: Observer) -> None:
    """Record which line removes a block of shared memory: there is no audit event for it."""
    unlink = module.SharedMemory.unlink

    @functools.wraps(unlink)
    def unlinked(this: Any) -> None:
        with contextlib.suppress(Exception):
            observer.record(_deed("removed", f"/{this.name}", users_line()))
        unlink(this)

    module.SharedMemory.unlink = unlinked


def _note_open(arguments: tuple[Any, ...]) -> None:
    path, _, flags = arguments
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    text = os.fsdecode(path)
    full = os.path.abspath(text)
    if _sample and isinstance(flags, int):
        _note_use(full, flags)
    if text.endswith(_IGNORED) or text.startswith(("/proc/", "/dev/", "/sys/")):
        return
    if _collected and len(_collected[0]) < 50 and not os.path.isdir(text):
        _collected[0].append(text)
    if len(opened) > MOST_PATHS and len(counts) > MOST_PATHS:
        return
    place = users_line()
    if _is_exclusive(flags):
        exclusive[full] = place
    if place is not None:
        opened[full] = place
        counts[place] += 1


def _note_use(path: str, flags: int) -> None:
    """Note that the current sample reads or writes a file."""
    known = _sample[0]
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
    elif len(_read) < MOST_READ:
        _read.append(path)


def _note_command(words: Any) -> None:
    """Note that a sample starts another program, which may write the files that its arguments name."""
    if _sample and isinstance(words, (list, tuple)):
        for word in words[1:40]:
            if isinstance(word, (str, bytes, os.PathLike)) and (text := os.fsdecode(word)).startswith("/"):
                _sample[0].setdefault(text, (users_line(), False))


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


def _full(path: Any, folder: Any = -1) -> str:
    """The absolute path of a path that may be relative to the current folder or to an open one."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    return os.path.abspath(text)
