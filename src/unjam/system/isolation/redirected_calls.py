"""Replacements for the functions of `os` and `io` where files are redirected.

See NOTE [ Redirected files ]. Each finds the file that a path stands for, calls the original function with
it, and puts the program's own path into errors. While `files` is None, each behaves like the original.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from typing import Any

from unjam.system.isolation.redirected_entries import Entries, Entry
from unjam.system.isolation.redirected_files import RedirectedFiles

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

files: RedirectedFiles | None = None
original = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
_open = io.open


# -- names -------------------------------------------------------------------------------------------


def path_text(path: Any, dir_fd: int | None = None) -> str | None:
    """The path as text; None for a descriptor, or anything that is not a path."""
    if isinstance(path, int):
        return None
    try:
        text = os.fsdecode(path)
    except TypeError:
        return None
    if "\0" in text or not text:
        return None
    if dir_fd is not None and not text.startswith("/"):
        text = posixpath.join(_of_descriptor(dir_fd), text)
    return text


def _of_descriptor(fd: int) -> str:
    assert files is not None
    return files.shown(original["readlink"](f"/proc/self/fd/{fd}"))


def _as_given(path: str, given: Any) -> Any:
    """A path as bytes if the program gave bytes."""
    return os.fsencode(path) if isinstance(given, bytes) else path


@contextlib.contextmanager
def _errors_name(given: Any, other: Any = None) -> Iterator[None]:
    """Put the path that the program gave into errors."""
    try:
        yield
    except OSError as error:
        error.filename = given
        if other is not None:
            error.filename2 = other
        raise


# -- reading -----------------------------------------------------------------------------------------


def _reads(name: str, *, follows: bool = True) -> Callable[..., Any]:
    function = original[name]

    @functools.wraps(function)
    def replaced(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        text = path_text(path, kwargs.get("dir_fd"))
        if files is None or text is None:
            return function(path, *args, **kwargs)
        with _errors_name(path):
            full = files.target(text) if follows and kwargs.get("follow_symlinks", True) else files.canonical(text)
            kwargs.pop("dir_fd", None)
            return function(_as_given(files.find(full), path), *args, **kwargs)

    return replaced


@functools.wraps(os.listdir)
def _listdir(path: Any = ".") -> Any:
    if files is None or path is None:
        return original["listdir"](path)
    with _errors_name(path):
        text = _of_descriptor(path) if isinstance(path, int) else path_text(path)
        if text is None:
            return original["listdir"](path)
        full = files.target(text)
        if not files.is_merged(full):
            return original["listdir"](_as_given(full, path))
        _check_folder(full)
        return [_as_given(name, path) for name, _ in files.names(full)]


@functools.wraps(os.scandir)
def _scandir(path: Any = ".") -> Any:
    if files is None or path is None:
        return original["scandir"](path)
    with _errors_name(path):
        text = _of_descriptor(path) if isinstance(path, int) else path_text(path)
        if text is None:
            return original["scandir"](path)
        full = files.target(text)
        is_its_name = ".." not in text and posixpath.normpath(posixpath.join(files.current(), text)) == full
        if not files.is_merged(full) and (is_its_name or isinstance(path, int)):
            return original["scandir"](path)
        _check_folder(full)
        names = [
            (_as_given(name, path), _as_given(posixpath.join(text, name), path), at) for name, at in files.names(full)
        ]
        return Entries([Entry(*one) for one in names])


def _check_folder(full: str) -> None:
    assert files is not None
    if not stat.S_ISDIR(original["stat"](files.find(full)).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), full)


@functools.wraps(os.readlink)
def _readlink(path: Any, *, dir_fd: int | None = None) -> Any:
    text = path_text(path, dir_fd)
    if files is None or text is None:
        return original["readlink"](path, dir_fd=dir_fd)
    with _errors_name(path):
        found = original["readlink"](files.find(files.canonical(text)))
        return _as_given(files.shown(found), path)


@functools.wraps(os.getcwd)
def _getcwd() -> str:
    return files.current() if files is not None else original["getcwd"]()


@functools.wraps(os.getcwdb)
def _getcwdb() -> bytes:
    return os.fsencode(_getcwd())


@functools.wraps(os.chdir)
def _chdir(path: Any) -> None:
    text = path_text(path)
    if files is None or text is None:
        original["chdir"](path)
        return
    with _errors_name(path):
        original["chdir"](folder_to_enter(text))


def folder_to_enter(text: str) -> str:
    """The real folder to enter for a path."""
    assert files is not None
    full = files.target(text)
    found = files.find(full)
    # native code finds the original files by relative paths
    exists_twice = found != full and not files.is_hidden(full) and _is_folder(full)
    return full if exists_twice else found


def _is_folder(full: str) -> bool:
    try:
        return stat.S_ISDIR(original["stat"](full).st_mode)
    except OSError:
        return False


# -- opening -----------------------------------------------------------------------------------------


def file_to_open(text: str, flags: int, *, follows: bool = True) -> str:
    """The file to open for a path."""
    assert files is not None
    only_new = bool(flags & os.O_CREAT and flags & os.O_EXCL)
    full = files.target(text) if follows and not only_new else files.canonical(text)
    found = files.find(full)
    if not flags & WRITES:
        return found
    exists = os.path.lexists(found)
    if only_new and exists:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), text)
    if not exists and not flags & os.O_CREAT:
        return found
    if exists and not stat.S_ISREG(original["stat"](found).st_mode):
        return found  # a pipe or device; a folder cannot be opened like this
    return files.make_writable(full, keep=not flags & os.O_TRUNC)


@functools.wraps(io.open)
def io_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:  # noqa: D103 - that of open()
    text = path_text(file)
    opener = kwargs.get("opener", args[5] if len(args) > 5 else None)
    if files is None or text is None or opener is not None:
        return _open(file, mode, *args, **kwargs)
    with _errors_name(file):
        flags = os.O_RDWR if "+" in mode else 0
        flags |= os.O_CREAT | os.O_TRUNC if "w" in mode else 0
        flags |= os.O_CREAT | os.O_EXCL if "x" in mode else 0
        flags |= os.O_CREAT | os.O_APPEND if "a" in mode else 0
        opened = _open(file_to_open(text, flags), mode, *args, **kwargs)
    raw: Any = opened
    while not isinstance(raw, io.FileIO):
        raw = getattr(raw, "buffer", None) or getattr(raw, "raw", None)
        if raw is None:
            return opened
    raw.name = file
    return opened


_open_code = io.open_code


@functools.wraps(io.open_code)
def open_code(path: str) -> Any:  # noqa: D103 - that of io.open_code()
    if files is None:
        return _open_code(path)
    with _errors_name(path):
        return _open_code(files.find(files.target(path)))


@functools.wraps(os.open)
def _os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
    text = path_text(path, dir_fd)
    if files is None or text is None:
        return original["open"](path, flags, mode, dir_fd=dir_fd)
    with _errors_name(path):
        if flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            return original["open"](files.make_writable(files.target(text), keep=True), flags, mode)
        found = file_to_open(text, flags, follows=not flags & os.O_NOFOLLOW)
        return original["open"](found, flags & ~os.O_EXCL if os.path.lexists(found) else flags, mode)


# -- changing ----------------------------------------------------------------------------------------


def _changes(name: str, *, follows: bool = True) -> Callable[..., Any]:
    """Replace a function that changes an existing file."""
    function = original[name]

    @functools.wraps(function)
    def replaced(path: Any, *args: Any, **kwargs: Any) -> Any:
        if files is None:
            return function(path, *args, **kwargs)
        if isinstance(path, int):
            text = _original_of(path)
            call = original[{"fchmod": "chmod", "fchown": "chown"}.get(name, name)]
        else:
            text, call = path_text(path, kwargs.get("dir_fd")), function
        if text is None:
            return function(path, *args, **kwargs)
        with _errors_name(path):
            following = follows and kwargs.get("follow_symlinks", True)
            full = files.target(text) if following else files.canonical(text)
            kwargs.pop("dir_fd", None)
            found = files.find(full)
            if os.path.lexists(found):
                found = files.make_writable(full, keep=True, content=name == "truncate")
            done = call(_as_given(found, path if isinstance(path, bytes) else ""), *args, **kwargs)
            if name in ("chmod", "fchmod"):
                files.record_mode_change(full)
            return done

    return replaced


def _original_of(fd: int) -> str | None:
    """The path of the original that a descriptor belongs to; None if it belongs to something else."""
    assert files is not None
    try:
        path = original["readlink"](f"/proc/self/fd/{fd}")
        is_there = original["fstat"](fd).st_nlink > 0
    except OSError:
        return None
    return path if is_there and path.startswith("/") and not files.is_passed_through(path) else None


def _makes(name: str) -> Callable[..., Any]:
    """Replace a function that creates an entry."""
    function = original[name]

    @functools.wraps(function)
    def replaced(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
        text = path_text(path, dir_fd)
        if files is None or text is None:
            return function(path, *args, dir_fd=dir_fd, **kwargs)
        with _errors_name(path):
            return function(place_of_new(text), *args, **kwargs)

    return replaced


def place_of_new(text: str) -> str:
    """The path for an entry that must not exist yet."""
    assert files is not None
    full = files.canonical(text)
    if os.path.lexists(files.find(full)):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), text)
    return files.make_writable(full, keep=False)


def _changes_entry(name: str, change: Callable[..., None]) -> Callable[..., None]:
    """Replace a function that adds or removes an entry. change: does so for a canonical path."""
    function = original[name]

    @functools.wraps(function)
    def replaced(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
        text = path_text(path, dir_fd)
        full = files.canonical(text) if files is not None and text is not None else ""
        if files is None or text is None or files.is_passed_through(full):
            function(path, *args, dir_fd=dir_fd, **kwargs)
            return
        with _errors_name(path):
            change(files, full, *args, **kwargs)

    return replaced


@functools.wraps(os.replace)
def _replace(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
    source, target = path_text(src, src_dir_fd), path_text(dst, dst_dir_fd)
    if files is None or source is None or target is None:
        original["replace"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        return
    with _errors_name(src, dst):
        old, new = files.canonical(source), files.canonical(target)
        if files.is_passed_through(old) and files.is_passed_through(new):
            original["replace"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        files.move(old, new)


@functools.wraps(os.link)
def _link(
    src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, follow_symlinks: bool = True
) -> None:
    source, target = path_text(src, src_dir_fd), path_text(dst, dst_dir_fd)
    if files is None or source is None or target is None:
        original["link"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
        return
    with _errors_name(src, dst):
        # on Linux the default does not follow links, although the documentation of os.link says so
        full = files.canonical(source)
        if not os.path.lexists(files.find(full)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), src)
        # through a link to the original, a later write would reach it
        original["link"](files.make_writable(full, keep=True, content=False), place_of_new(target))


@functools.wraps(os.symlink)
def _symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:  # noqa: FBT001, FBT002 - its signature
    text = path_text(dst, dir_fd)
    if files is None or text is None:
        original["symlink"](src, dst, target_is_directory, dir_fd=dir_fd)
        return
    with _errors_name(src, dst):
        original["symlink"](src, _as_given(place_of_new(text), src))


def replaced() -> dict[str, Any]:
    """The replacements, by the name of the function of os."""
    return {
        **{name: _reads(name) for name in ("stat", "access", "statvfs", "getxattr", "listxattr")},
        **{name: _changes(name) for name in ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr")},
        **{name: _changes(name) for name in ("fchmod", "fchown")},
        **{name: _makes(name) for name in ("mkfifo", "mknod")},
        "lstat": _reads("lstat", follows=False), "lchown": _changes("lchown", follows=False),
        "listdir": _listdir, "scandir": _scandir, "readlink": _readlink, "getcwd": _getcwd, "getcwdb": _getcwdb,
        "chdir": _chdir, "open": _os_open,
        "mkdir": _changes_entry("mkdir", RedirectedFiles.make_folder), "rmdir": _changes_entry("rmdir", RedirectedFiles.remove_folder),
        "unlink": (unlink := _changes_entry("unlink", RedirectedFiles.remove)), "remove": unlink,
        "rename": _replace, "replace": _replace, "link": _link, "symlink": _symlink,
    }  # fmt: skip
