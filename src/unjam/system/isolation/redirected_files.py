"""Which file a path stands for, where a scratch folder takes a program's changes instead of the original files.

NOTE [ Redirected files ]

Where a view (NOTE [ The view ]) is not possible, `redirect` replaces Python's own file functions by
functions that use other files, and this module decides which ones.

    scratch/files/PATH        a new or changed file, folder or link
    scratch/hidden/HASH       the original at this path, and all below it, is no longer visible
    scratch/hidden/mode-HASH  the program has set the mode of this folder

A path stands for its entry in `files` if there is one, for nothing if it or a folder above it is
hidden, and for the original otherwise. The marks in `hidden` are never removed: a file that is created
again is in `files`. So each change is one operation on the disk, and the workers of a program see each
other's files.

A program looks at thousands of files that it never changes, most of them while it imports. So we cache
what we found out about folders until the next mark, or until a folder is created, removed or renamed:
each of these changes the modification time of `hidden`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
import shutil
import stat
import threading
import time
from dataclasses import dataclass, field

# the originals of functions that `redirect` replaces: this module must reach the files themselves
_lstat, _stat, _listdir, _mkdir, _readlink, _symlink = os.lstat, os.stat, os.listdir, os.mkdir, os.readlink, os.symlink
_unlink, _rmdir, _chmod, _utime, _open, _getcwd = os.unlink, os.rmdir, os.chmod, os.utime, os.open, os.getcwd
_scandir, _rename, _link = os.scandir, os.rename, os.link
# devices and the kernel's files are never redirected; files in /dev/shm are
PASSED_THROUGH = ("/dev", "/proc", "/sys")
SHARED_MEMORY = "/dev/shm"
MOST_LINKS = 40
# a file system may give two changes within this many nanoseconds the same time
CLOCK_STEP = 50_000_000
MOST_CACHED = 20_000
_CHMOD = "mode-"  # prefix of the mark of a folder whose mode the program has set


class RedirectedFiles:
    """The files that a program sees: the originals, overlaid with its own changes."""

    def __init__(self, scratch: str, real: list[str]) -> None:
        """real: folders whose files are used as they are."""
        self.scratch = scratch
        self.files, self._hidden = f"{scratch}/files", f"{scratch}/hidden"
        for folder in (self.files, self._hidden):
            os.makedirs(folder, 0o700, exist_ok=True)
        self._real = (*PASSED_THROUGH, scratch, *real)
        self._cached = _Cache(frozenset())
        self._cached_at = -1
        self._owner = _stat(self._hidden).st_uid

    # -- names -------------------------------------------------------------------------------------

    def is_passed_through(self, path: str) -> bool:
        """Whether a path is never redirected."""
        if path == SHARED_MEMORY or path.startswith(f"{SHARED_MEMORY}/"):
            return False
        return any(path == top or path.startswith(f"{top}/") for top in self._real)

    def canonical(self, path: str) -> str:
        """The absolute path of an entry, without links in the folders above it."""
        full = path if path.startswith("/") else posixpath.join(self.current(), path)
        folder, name = posixpath.split(full.rstrip("/"))
        if name in ("", ".", ".."):
            return self._folder(full)
        return posixpath.join(self._folder(folder), name)

    def current(self) -> str:
        """The current folder, by its original path."""
        return self.shown(_getcwd())

    def shown(self, path: str) -> str:
        """The original path of a file that may be in `files`."""
        return path[len(self.files) :] or "/" if path == self.files or path.startswith(f"{self.files}/") else path

    def target(self, path: str) -> str:
        """The canonical path that a path leads to, with links followed."""
        full = self.canonical(path)
        for _ in range(MOST_LINKS):
            link = self._link_at(full)
            if link is None:
                return full
            full = self.canonical(posixpath.join(posixpath.dirname(full), link))
        raise _error(errno.ELOOP, path)

    def _folder(self, folder: str) -> str:
        folders = self._cache().folders
        if folder not in folders:
            done, is_stable = self._resolve(folder)
            if not is_stable:
                return done
            folders[folder] = done
        return folders[folder]

    def _resolve(self, folder: str) -> tuple[str, bool]:
        """A folder without links in its path, and whether only this program can change the result."""
        done, links, is_stable = "/", MOST_LINKS, True
        parts = [part for part in folder.split("/") if part not in ("", ".")]
        while parts:
            name = parts.pop(0)
            if name == "..":
                done = posixpath.dirname(done)
                continue
            done = posixpath.join(done, name)
            found = self.find(done)
            mode = _lstat(found).st_mode
            is_stable = is_stable and not self.is_passed_through(done)
            if stat.S_ISLNK(mode):
                link = _readlink(found)
                links -= 1
                if links < 0:
                    raise _error(errno.ELOOP, folder)
                parts = [part for part in link.split("/") if part not in ("", ".")] + parts
                done = "/" if link.startswith("/") else posixpath.dirname(done)
            elif not stat.S_ISDIR(mode):
                raise _error(errno.ENOTDIR, folder)
        return done, is_stable

    def _link_at(self, full: str) -> str | None:
        """The target of a link. The name of a descriptor in /proc may lead to something without a path."""
        try:
            found = _readlink(self.find(full))
        except OSError:
            return None
        if self.is_passed_through(full) and not (found.startswith("/") and (_mode(found) or _mode(self.files + found))):
            return None
        return found

    # -- reading -----------------------------------------------------------------------------------

    def find(self, full: str) -> str:
        """The file that a canonical path stands for; if there is none, a path at which nothing exists."""
        if self.is_passed_through(full):
            return full
        own = self.files + full
        if self._is_untouched(posixpath.dirname(full)):
            return own if self._is_marked(full) else full
        return own if _exists(own) or self.is_hidden(full) else full

    def _is_untouched(self, folder: str) -> bool:
        """Whether a folder is the original, and nothing was created in it."""
        known = self._cache().untouched
        if folder not in known:
            known[folder] = not _exists(self.files + folder) and not self.is_hidden(folder)
        return known[folder]

    def names(self, full: str) -> list[tuple[str, str]]:
        """The entries of a folder: each name, and the file that it stands for."""
        own = self.files + full
        found: dict[str, str] = {}
        if not self.is_passed_through(full) and stat.S_ISDIR(_mode(own)):
            found = {name: posixpath.join(own, name) for name in _listdir(own)}
            if self.is_hidden(full) or not stat.S_ISDIR(_mode(full)):
                return list(found.items())
        elif self.is_hidden(full):
            raise _error(errno.ENOENT, full)
        for name in _listdir(full):
            path = posixpath.join(full, name)
            if not self._is_marked(path):
                found.setdefault(name, path)
        return list(found.items())

    def is_merged(self, full: str) -> bool:
        """Whether the entries of a folder differ from those of the original."""
        if self.is_passed_through(full):
            return False
        return _exists(self.files + full) or bool(self._cache().marks)

    # -- changing ----------------------------------------------------------------------------------

    def make_writable(self, full: str, *, keep: bool, content: bool = True) -> str:
        """The file to write for a canonical path.

        keep: with its present content. content: the content will change, not only the name or status.
        """
        if self.is_passed_through(full):
            return full
        own = self.files + full
        if _exists(own):
            return own
        folder = posixpath.dirname(full)
        if self.is_hidden(full) or not _exists(full):
            self._make_folder_of_new(folder)
            return own
        self._make_folders(folder)
        status = _lstat(full)
        if content and not stat.S_ISLNK(status.st_mode):
            _check_permission(full)
        if stat.S_ISDIR(status.st_mode):
            _mkdir_once(own, 0o700)
            _copy_status(status, own)
            self._invalidate()
        else:
            self._copy_in(full, own, status, keep=keep)
        return own

    def _copy_in(self, full: str, own: str, status: os.stat_result, *, keep: bool) -> None:
        """Create the complete copy of a file in one step, because another thread or process may do the same."""
        partial = f"{self.scratch}/{os.getpid()}.{threading.get_ident()}.copy"
        if keep:
            shutil.copyfile(full, partial, follow_symlinks=False)
        else:
            os.close(_open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        try:
            _copy_status(status, partial)
            with contextlib.suppress(FileExistsError):  # the other one was first, and may already have written to it
                _link(partial, own, follow_symlinks=False)
        finally:
            _unlink(partial)

    def hide(self, full: str) -> None:
        """Hide the original at a path, and all below it."""
        if not self.is_hidden(full) and _exists(full):
            self._check_folder(posixpath.dirname(full))
            os.close(_open(f"{self._hidden}/{_hash(full)}", os.O_WRONLY | os.O_CREAT, 0o600))
            self._cached_at = -1

    def remove(self, full: str) -> None:
        """Remove a file or link."""
        own = self.files + full
        if not _exists(own) and (self.is_hidden(full) or not _exists(full)):
            raise _error(errno.ENOENT, full)
        if stat.S_ISDIR(_mode(own) or _mode(full)):
            raise _error(errno.EISDIR, full)
        self.hide(full)
        if _exists(own):
            _unlink(own)
            self._invalidate()

    def remove_folder(self, full: str) -> None:
        """Remove a folder without visible entries."""
        if not stat.S_ISDIR(_lstat(self.find(full)).st_mode):
            raise _error(errno.ENOTDIR, full)
        if self.names(full):
            raise _error(errno.ENOTEMPTY, full)
        self.hide(full)
        if _exists(self.files + full):
            _rmdir(self.files + full)
            self._invalidate()

    def make_folder(self, full: str, mode: int = 0o777) -> None:
        """Make a folder."""
        if _exists(self.find(full)):
            raise _error(errno.EEXIST, full)
        self._make_folder_of_new(posixpath.dirname(full))
        _mkdir(self.files + full, mode)
        self._invalidate()

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder."""
        try:
            self._move(source, target)
        finally:
            self._invalidate()

    def _move(self, source: str, target: str) -> None:
        found = self.find(source)
        if not _exists(found):
            raise _error(errno.ENOENT, source)
        if source == target:
            return
        over = self.find(target)
        if target.startswith(f"{source}/"):
            raise _error(errno.EINVAL, source)
        if source.startswith(f"{target}/"):
            raise _error(errno.ENOTEMPTY, target)
        if stat.S_ISDIR(_mode(found)):
            if _exists(over):
                if not stat.S_ISDIR(_mode(over)):
                    raise _error(errno.ENOTDIR, target)
                self.remove_folder(target)  # fails unless it is an empty folder
            if self.is_passed_through(source) or self.is_hidden(source) or not _exists(source):
                _rename(found, self._place(target))
                return
            self._copy_folder(source, target)
            self.hide(source)
            if _exists(self.files + source):
                shutil.rmtree(self.files + source)
            return
        if stat.S_ISDIR(_mode(over)):
            raise _error(errno.EISDIR, target)
        own = self.make_writable(source, keep=True, content=False)
        place = self._place(target)
        if not self.is_passed_through(source):
            self.hide(source)
        _rename(own, place)

    def _place(self, target: str) -> str:
        """The place for a new entry."""
        if self.is_passed_through(target):
            return target
        self._make_folder_of_new(posixpath.dirname(target))
        return self.files + target

    def _copy_folder(self, source: str, target: str) -> None:
        entries = self.names(source)
        place = self._place(target)
        _mkdir(place, stat.S_IMODE(_mode(self.find(source))) | 0o700)
        for name, path in entries:
            if stat.S_ISDIR(_mode(path)):
                self._copy_folder(posixpath.join(source, name), posixpath.join(target, name))
            else:
                shutil.copy2(path, posixpath.join(place, name), follow_symlinks=False)

    def _make_folder_of_new(self, folder: str) -> None:
        """Create a folder in `files` for a new entry, if the user may create entries in it."""
        self._make_folders(folder)
        self._check_folder(folder)

    def _check_folder(self, folder: str) -> None:
        """Refuse to change the entries of a folder where the user may not."""
        if not self.is_hidden(folder) and _exists(folder):
            # the copy of a folder is always writable, until the program sets its mode
            has_mode = f"{_CHMOD}{_hash(folder)}" in self._cache().marks
            _check_permission(self.files + folder if has_mode else folder, folder=True)

    def record_mode_change(self, full: str) -> None:
        """Record that the program has set the mode of this folder or file."""
        if stat.S_ISDIR(_mode(self.files + full)):
            os.close(_open(f"{self._hidden}/{_CHMOD}{_hash(full)}", os.O_WRONLY | os.O_CREAT, 0o600))
            self._cached_at = -1

    def _make_folders(self, folder: str) -> None:
        """Create a folder in `files` for a visible original, and those above it."""
        own = self.files + folder
        if _exists(own):
            if not stat.S_ISDIR(_mode(own)):
                raise _error(errno.ENOTDIR, folder)
            return
        if self.is_hidden(folder) or not _exists(folder):
            raise _error(errno.ENOENT, folder)
        if not stat.S_ISDIR(_mode(folder)):
            raise _error(errno.ENOTDIR, folder)
        self._make_folders(posixpath.dirname(folder))
        _mkdir_once(own, stat.S_IMODE(_mode(folder)) | 0o700)
        self._invalidate()

    # -- marks and cache -------------------------------------------------------------------------------

    def is_hidden(self, full: str) -> bool:
        """Whether the original at a path, or a folder above it, is hidden."""
        known = self._cache()
        if not known.marks:
            return False
        if full not in known.hidden:
            known.hidden[full] = self._is_marked(full) or (full != "/" and self.is_hidden(posixpath.dirname(full)))
        return known.hidden[full]

    def _is_marked(self, full: str) -> bool:
        marks = self._cache().marks
        return bool(marks) and _hash(full) in marks

    def _invalidate(self) -> None:
        """Invalidate the cache of every process."""
        _utime(self._hidden)
        self._cached_at = -1

    def _cache(self) -> _Cache:
        status = _stat(self._hidden)
        if status.st_uid != self._owner:
            raise _error(
                errno.EPERM, self._hidden
            )  # the doctor has ended, and another user has created the folder again
        changed = status.st_mtime_ns
        if changed != self._cached_at or len(self._cached) > MOST_CACHED:
            self._cached, self._cached_at = _Cache(frozenset(_listdir(self._hidden))), changed
            if abs(time.time_ns() - changed) < CLOCK_STEP:
                self._cached_at = -1  # a second change may have the same time
        return self._cached


@dataclass(slots=True)
class _Cache:
    """What was found out since the last change. marks: the names in `hidden`. The rest is by path."""

    marks: frozenset[str]
    folders: dict[str, str] = field(default_factory=dict)
    untouched: dict[str, bool] = field(default_factory=dict)
    hidden: dict[str, bool] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.folders) + len(self.untouched) + len(self.hidden)


def _mkdir_once(path: str, mode: int) -> None:
    """Create a folder, unless another thread or process has just done so."""
    with contextlib.suppress(FileExistsError):
        _mkdir(path, mode)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _exists(path: str) -> bool:
    return _mode(path) != 0


def _mode(path: str) -> int:
    """The mode of an entry; 0 if there is none."""
    try:
        return _lstat(path).st_mode
    except OSError:
        return 0


def _check_permission(path: str, *, folder: bool = False) -> None:
    """Refuse a change that the user may not make to the original."""
    if not _access(path, os.W_OK | (os.X_OK if folder else 0)):
        raise _error(errno.EACCES, path)


_access = os.access


def _copy_status(status: os.stat_result, path: str) -> None:
    if not stat.S_ISLNK(status.st_mode):
        _chmod(path, stat.S_IMODE(status.st_mode) | 0o600)
        _utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _hash(full: str) -> str:
    return hashlib.sha1(os.fsencode(full), usedforsecurity=False).hexdigest()
