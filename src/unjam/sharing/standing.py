"""What is hung into a worker's dataset: the right kind of what stands for a container. See NOTE [ As after a fork ]."""

from __future__ import annotations

from typing import Any

from unjam.sharing.dicts import SharedDict
from unjam.sharing.lists import SharedList, Texts, Words
from unjam.sharing.private import StandingDict, StandingList, StandingTuple


class _QuickTexts(StandingList):
    """A list of strings, which is read most often: straight from the buffer, as long as nothing else is to be minded."""

    __slots__ = ("_bytes", "_ends", "_starts")
    _starts: Any

    def __init__(self, path: str, shared: Texts, original: Any = None) -> None:
        super().__init__(path, shared, original)
        self._bytes, self._starts, self._ends = shared.parts()

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._bytes[self._starts[index] : self._ends[index]].decode()
        except (TypeError, IndexError, UnicodeDecodeError):
            return StandingList.__getitem__(self, index)

    def _take_time(self) -> None:
        self._starts = None


class _QuickWords(StandingList):
    """The same for a list of numbers, as the indices of a subset are."""

    __slots__ = ("_numbers",)
    _numbers: Any

    def __init__(self, path: str, shared: Words, original: Any = None) -> None:
        super().__init__(path, shared, original)
        self._numbers = shared._numbers  # noqa: SLF001 - made for this

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and self._numbers is not None and 0 <= index < self._count:
            return self._numbers[index]
        return StandingList.__getitem__(self, index)

    def _take_time(self) -> None:
        self._numbers = None


def stand_for(path: str, shared: SharedList | SharedDict, kind: str, original: Any = None) -> Any:
    """What hangs in a worker's dataset in place of a container."""
    standing: Any = {"list": StandingList, "tuple": StandingTuple, "dict": StandingDict}[kind]
    if kind == "list" and isinstance(shared, Texts):
        standing = _QuickTexts
    elif kind == "list" and isinstance(shared, Words):
        standing = _QuickWords
    return standing(path, shared, original)


class Stand:
    """On its way to a worker: there it is what stands for the container."""

    __slots__ = ("kind", "path", "shared")

    def __init__(self, path: str, shared: SharedList | SharedDict, kind: str) -> None:
        self.path = path
        self.shared = shared
        self.kind = kind

    def __reduce__(self) -> Any:
        return stand_for, (self.path, self.shared, self.kind)
