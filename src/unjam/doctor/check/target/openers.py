"""Who opened which file: the user's line for each path, from Python's audit events."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from unjam.doctor.facts.trial import Place, users_place

MOST = 2000
MOST_READ = 20
_IGNORED = (".py", ".pyc", ".pyi", ".so", ".dist-info")

opened: dict[str, Place] = {}  # real path -> the line that opened it last
counts: Counter[Place] = Counter()  # how often each line opened a file
created: dict[str, Place | None] = {}  # files that a sample created in a way that only one process can
_collected: list[list[str]] = []  # where the paths that are opened now go


def hear(arguments: tuple[Any, ...], frame: Any) -> None:
    """Note an `open`."""
    path, _, flags = arguments
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    text = os.fsdecode(path)
    if _sample and isinstance(flags, int):
        _note_use(os.path.abspath(text), flags, frame)
    if text.endswith(_IGNORED) or text.startswith(("/proc/", "/dev/", "/sys/")):
        return
    if _collected and len(_collected[0]) < 50 and not os.path.isdir(text):
        _collected[0].append(text)
    if len(opened) > MOST and len(counts) > MOST:
        return
    place = users_place(frame)
    full = os.path.abspath(text)
    if is_exclusive(flags):
        created[full] = place
    if place is not None:
        opened[full] = place
        counts[place] += 1


def is_exclusive(flags: Any) -> bool:
    """Whether a file is created in a way that only one process can."""
    return isinstance(flags, int) and bool(flags & os.O_EXCL and flags & os.O_CREAT)


def cuts(arguments: tuple[Any, ...]) -> bool:
    """Whether an `open` will cut a file that has content."""
    path, _, flags = arguments
    if not isinstance(flags, int) or not flags & os.O_TRUNC or not isinstance(path, (str, bytes, os.PathLike)):
        return False
    try:
        return os.stat(path).st_size > WORTH
    except OSError:
        return False


WORTH = 4096  # bytes of a file that may be mapped


# -- what one sample does with files -----------------------------------------------------------------------------------

locks = False  # whether this process has locked a file
# of the current sample: the paths that it wrote, by which line, and whether it has read them since; those that it only read
_sample: list[dict[str, tuple[Place | None, bool]]] = []
_read: list[str] = []


def begin_sample() -> None:
    """A sample is loaded now."""
    _sample[:] = [{}]
    _read.clear()


def _note_use(path: str, flags: int, frame: Any) -> None:
    known = _sample[0]
    if flags & (os.O_WRONLY | os.O_RDWR):
        if not flags & os.O_APPEND and flags & (os.O_CREAT | os.O_TRUNC) and len(known) < MOST and path not in known:
            known[path] = (users_place(frame), False)
    elif path in known:
        known[path] = (known[path][0], True)
    elif len(_read) < MOST_READ:
        _read.append(path)


def note_command(words: Any, frame: Any) -> None:
    """Note that a sample starts another program, which may write the files that it names."""
    if _sample and isinstance(words, (list, tuple)):
        for word in words[1:40]:
            if isinstance(word, (str, bytes, os.PathLike)) and (text := os.fsdecode(word)).startswith("/"):
                _sample[0].setdefault(text, (users_place(frame), False))


def note_lock() -> None:
    """Note that this process locks files."""
    global locks  # noqa: PLW0603 - one for each process
    locks = True


def read_only() -> list[str]:
    """The files that the sample has read, and not written."""
    return list(_read)


def written() -> list[tuple[str, Place | None, bool]]:
    """The files that the sample wrote, or had written, the line that did so, and whether it read them afterwards."""
    known = [(path, place, is_read) for path, (place, is_read) in _sample[0].items()] if _sample else []
    _sample.clear()
    return known


def line_of(target: str) -> Place | None:
    """Return the line that opened a file, by its path."""
    return opened.get(target.removesuffix(" (deleted)"))


def collect_opened() -> list[str]:
    """A list that gets the paths that are opened from now on."""
    _collected[:] = [[]]
    return _collected[0]


def collect_no_more() -> None:
    """End what `collect_opened` began."""
    _collected.clear()


def busiest() -> dict[str, Any]:
    """The line that opened most files, as fields of an event."""
    for place, _ in counts.most_common(1):
        return {"file": place.file, "line": place.line}
    return {}
