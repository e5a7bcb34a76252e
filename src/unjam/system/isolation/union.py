"""A folder that takes the changes of a program instead of the original files.

NOTE [ Redirected files ]

Where a view (NOTE [ The view ]) is not possible, Python's own functions are pointed to other files:
`redirect` replaces them, and this module says which file a path stands for.

    scratch/files/PATH   a new or changed file, folder or link
    scratch/hidden/HASH  the original at this path, and all below it, is not visible any more
    scratch/hidden/mode-HASH  the program has set the mode of this folder

A path stands for its entry in `files` if there is one, for nothing if it or a folder above it is
hidden, and for the original otherwise. A mark is never removed: what is made again lies in `files`.
So each change is one operation on the disk, and the workers of a program see each other's files.

A program looks at thousands of files that it never changes, most of them while it imports. So what is
known of folders is kept until the next mark, or the next folder that is made, removed or renamed: each
of these changes the time of `hidden`.
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
# devices and the kernel's files are what they are; files in /dev/shm are files
LEFT_ALONE = ("/dev", "/proc", "/sys")
SHARED_MEMORY = "/dev/shm"
MOST_LINKS = 40
# nanoseconds in which the clock of a file system may not advance
CLOCK_STEP = 50_000_000
MOST_KNOWN = 20_000
_CHMOD = "mode-"  # before a folder's mark if the program has set its mode


class Union:
    """The files that a program sees: the originals, and over them its own changes."""

    def __init__(self, scratch: str, real: list[str]) -> None:
        """real: folders whose files are used as they are."""
        self.scratch = scratch
        self.files, self._hidden = f"{scratch}/files", f"{scratch}/hidden"
        for folder in (self.files, self._hidden):
            os.makedirs(folder, 0o700, exist_ok=True)
        self._real = (*LEFT_ALONE, scratch, *real)
        self._known = _Known(frozenset())
        self._known_at = -1
        self._owner = _stat(self._hidden).st_uid

    # -- names -------------------------------------------------------------------------------------

    def is_left_alone(self, path: str) -> bool:
        """Whether a path is used as it is."""
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
        """The current folder, under the name that the program knows."""
        return self.shown(_getcwd())

    def shown(self, path: str) -> str:
        """The path that the program knows for a file that may lie in `files`."""
        return path[len(self.files) :] or "/" if path == self.files or path.startswith(f"{self.files}/") else path

    def target(self, path: str) -> str:
        """The canonical path of what a path stands for, with links followed."""
        full = self.canonical(path)
        for _ in range(MOST_LINKS):
            link = self._link_at(full)
            if link is None:
                return full
            full = self.canonical(posixpath.join(posixpath.dirname(full), link))
        raise _error(errno.ELOOP, path)

    def _folder(self, folder: str) -> str:
        folders = self._now().folders
        if folder not in folders:
            done, lasts = self._resolve(folder)
            if not lasts:
                return done
            folders[folder] = done
        return folders[folder]

    def _resolve(self, folder: str) -> tuple[str, bool]:
        """A folder without links in its path, and whether only this program can change that."""
        done, links, lasts = "/", MOST_LINKS, True
        parts = [part for part in folder.split("/") if part not in ("", ".")]
        while parts:
            name = parts.pop(0)
            if name == "..":
                done = posixpath.dirname(done)
                continue
            done = posixpath.join(done, name)
            found = self.find(done)
            mode = _lstat(found).st_mode
            lasts = lasts and not self.is_left_alone(done)
            if stat.S_ISLNK(mode):
                link = _readlink(found)
                links -= 1
                if links < 0:
                    raise _error(errno.ELOOP, folder)
                parts = [part for part in link.split("/") if part not in ("", ".")] + parts
                done = "/" if link.startswith("/") else posixpath.dirname(done)
            elif not stat.S_ISDIR(mode):
                raise _error(errno.ENOTDIR, folder)
        return done, lasts

    def _link_at(self, full: str) -> str | None:
        """Where a link leads. A descriptor's name in /proc may lead to what has no path."""
        try:
            found = _readlink(self.find(full))
        except OSError:
            return None
        if self.is_left_alone(full) and not (found.startswith("/") and (_mode(found) or _mode(self.files + found))):
            return None
        return found

    # -- reading -----------------------------------------------------------------------------------

    def find(self, full: str) -> str:
        """The file that a canonical path stands for; if there is none, a path where none is."""
        if self.is_left_alone(full):
            return full
        own = self.files + full
        if self._is_untouched(posixpath.dirname(full)):
            return own if self._is_marked(full) else full
        return own if _exists(own) or self.is_hidden(full) else full

    def _is_untouched(self, folder: str) -> bool:
        """Whether a folder is the original, and nothing was made in it."""
        known = self._now().untouched
        if folder not in known:
            known[folder] = not _exists(self.files + folder) and not self.is_hidden(folder)
        return known[folder]

    def names(self, full: str) -> list[tuple[str, str]]:
        """The entries of a folder: each name, and the file that it stands for."""
        own = self.files + full
        found: dict[str, str] = {}
        if not self.is_left_alone(full) and stat.S_ISDIR(_mode(own)):
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
        if self.is_left_alone(full):
            return False
        return _exists(self.files + full) or bool(self._now().marks)

    # -- changing ----------------------------------------------------------------------------------

    def make_writable(self, full: str, *, keep: bool, content: bool = True) -> str:
        """The file to write for a canonical path.

        keep: with the content that it has now. content: its content will change, not only its name or status.
        """
        if self.is_left_alone(full):
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
            self._changed()
        else:
            self._copy_in(full, own, status, keep=keep)
        return own

    def _copy_in(self, full: str, own: str, status: os.stat_result, *, keep: bool) -> None:
        """Make the own version of a file complete, in one step: another thread or process may do the same."""
        partial = f"{self.scratch}/{os.getpid()}.{threading.get_ident()}.copy"
        if keep:
            shutil.copyfile(full, partial, follow_symlinks=False)
        else:
            os.close(_open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        try:
            _copy_status(status, partial)
            with contextlib.suppress(FileExistsError):  # the other was first, and may have written to it
                _link(partial, own, follow_symlinks=False)
        finally:
            _unlink(partial)

    def hide(self, full: str) -> None:
        """Let the original at a path, and all below it, not be visible any more."""
        if not self.is_hidden(full) and _exists(full):
            self._check_folder(posixpath.dirname(full))
            os.close(_open(f"{self._hidden}/{_hash(full)}", os.O_WRONLY | os.O_CREAT, 0o600))
            self._known_at = -1

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
            self._changed()

    def remove_folder(self, full: str) -> None:
        """Remove a folder that shows no entries."""
        if self.names(full):
            raise _error(errno.ENOTEMPTY, full)
        self.hide(full)
        if _exists(self.files + full):
            _rmdir(self.files + full)
            self._changed()

    def make_folder(self, full: str, mode: int) -> None:
        """Make a folder."""
        if _exists(self.find(full)):
            raise _error(errno.EEXIST, full)
        self._make_folder_of_new(posixpath.dirname(full))
        _mkdir(self.files + full, mode)
        self._changed()

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder."""
        try:
            self._move(source, target)
        finally:
            self._changed()

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
            if self.is_left_alone(source) or self.is_hidden(source) or not _exists(source):
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
        if not self.is_left_alone(source):
            self.hide(source)
        _rename(own, place)

    def _place(self, target: str) -> str:
        """Where a new entry is put."""
        if self.is_left_alone(target):
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
        """Make a folder of `files` for a new entry, if the user may make entries in it."""
        self._make_folders(folder)
        self._check_folder(folder)

    def _check_folder(self, folder: str) -> None:
        """Refuse to change the entries of a folder if the user could not."""
        if not self.is_hidden(folder) and _exists(folder):
            # the copy of a folder can always be written to, until the program decides about its mode
            decided = f"{_CHMOD}{_hash(folder)}" in self._now().marks
            _check_permission(self.files + folder if decided else folder, folder=True)

    def note_mode(self, full: str) -> None:
        """The program has set the mode of this folder or file."""
        if stat.S_ISDIR(_mode(self.files + full)):
            os.close(_open(f"{self._hidden}/{_CHMOD}{_hash(full)}", os.O_WRONLY | os.O_CREAT, 0o600))
            self._known_at = -1

    def _make_folders(self, folder: str) -> None:
        """Make a folder of `files` that has a visible original, and those above it."""
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
        self._changed()

    # -- marks, and what is known --------------------------------------------------------------------

    def is_hidden(self, full: str) -> bool:
        """Whether the original at a path, or a folder above it, is hidden."""
        known = self._now()
        if not known.marks:
            return False
        if full not in known.hidden:
            known.hidden[full] = self._is_marked(full) or (full != "/" and self.is_hidden(posixpath.dirname(full)))
        return known.hidden[full]

    def _is_marked(self, full: str) -> bool:
        marks = self._now().marks
        return bool(marks) and _hash(full) in marks

    def _changed(self) -> None:
        """Let every process forget what it knows."""
        _utime(self._hidden)
        self._known_at = -1

    def _now(self) -> _Known:
        status = _stat(self._hidden)
        if status.st_uid != self._owner:
            raise _error(errno.EPERM, self._hidden)  # the doctor is gone, and another user has made the folder again
        changed = status.st_mtime_ns
        if changed != self._known_at or len(self._known) > MOST_KNOWN:
            self._known, self._known_at = _Known(frozenset(_listdir(self._hidden))), changed
            if abs(time.time_ns() - changed) < CLOCK_STEP:
                self._known_at = -1  # a second change may get the same time
        return self._known


@dataclass(slots=True)
class _Known:
    """What was found since the last change. marks: the names in `hidden`. The rest is by path."""

    marks: frozenset[str]
    folders: dict[str, str] = field(default_factory=dict)
    untouched: dict[str, bool] = field(default_factory=dict)
    hidden: dict[str, bool] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.folders) + len(self.untouched) + len(self.hidden)


def _mkdir_once(path: str, mode: int) -> None:
    """Make a folder, unless another thread or process has just done it."""
    with contextlib.suppress(FileExistsError):
        _mkdir(path, mode)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _exists(path: str) -> bool:
    try:
        _lstat(path)
    except OSError:
        return False
    return True


def _mode(path: str) -> int:
    """The mode of an entry; 0 if there is none."""
    try:
        return _lstat(path).st_mode
    except OSError:
        return 0


def _check_permission(path: str, *, folder: bool = False) -> None:
    """Refuse what the user could not do to the original."""
    if not _access(path, os.W_OK | (os.X_OK if folder else 0)):
        raise _error(errno.EACCES, path)


_access = os.access


def _copy_status(status: os.stat_result, path: str) -> None:
    if not stat.S_ISLNK(status.st_mode):
        _chmod(path, stat.S_IMODE(status.st_mode) | 0o600)
        _utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _hash(full: str) -> str:
    return hashlib.sha1(os.fsencode(full), usedforsecurity=False).hexdigest()
