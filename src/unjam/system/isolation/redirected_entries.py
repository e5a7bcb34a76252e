"""The results of os.scandir for a redirected folder. See NOTE [ Redirected files ]."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Entry:
    """An entry of a folder, like os.DirEntry."""

    def __init__(self, name: Any, path: Any, found: str) -> None:
        """found: the real file."""
        self.name, self.path, self._found = name, path, found

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The status, as os.stat gives it."""
        return os.stat(self.path if follow_symlinks else self._found, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """The number of the inode."""
        return self.stat(follow_symlinks=False).st_ino

    def _is(self, test: Callable[[int], bool], follow_symlinks: bool) -> bool:  # noqa: FBT001 - private
        try:
            return test(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file."""
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return self._is(stat.S_ISLNK, follow_symlinks=False)

    def is_junction(self) -> bool:
        """Always False: junctions exist only on Windows."""
        return False


class Entries(contextlib.AbstractContextManager["Entries"]):
    """The iterator that os.scandir returns for a redirected folder."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the remaining entries."""
        self._entries = iter(())
