"""Safe files and sockets in folders that others can write to: nothing of another user is trusted."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator


class UnsafeFileError(OSError):
    """A file that we refuse to write to; the text says why."""


def open_own(path: str, flags: int, mode: int) -> int:
    """Open a regular file with a single name, not a link. Never blocks, as opening a pipe could."""
    if not flags & os.O_CREAT or flags & os.O_EXCL:
        return _checked(_open(path, flags, mode), path)
    try:
        return _checked(_open(path, flags & ~os.O_CREAT, mode), path)
    except FileNotFoundError:
        # another process may have created it since; then we open that file
        return _checked(_open(path, flags, mode), path)


@contextlib.contextmanager
def own_folder(path: str) -> Iterator[str]:
    """A path that keeps leading to this folder even if its own path is renamed or replaced.

    Raises UnsafeFileError if another user could have made the folder, or can write to it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise UnsafeFileError(errno.EPERM, "the folder belongs to another user", path)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def is_own_peer(connection: socket.socket) -> bool:
    """Whether the process at the other end of a local socket belongs to this user."""
    form = struct.Struct("3i")  # process, user, group
    _, user, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return bool(user == os.geteuid())


def _open(path: str, flags: int, mode: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UnsafeFileError(
                errno.ELOOP, "it is a symbolic link, and links are not followed here", path
            ) from error
        if error.errno == errno.ENXIO:
            raise UnsafeFileError(errno.ENXIO, "it is not a regular file", path) from error
        raise


def _checked(fd: int, path: str) -> int:
    status = os.fstat(fd)
    problem = _problem_with(status, path)
    if not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    if problem:
        os.close(fd)
        raise UnsafeFileError(errno.EPERM, problem, path)
    os.set_blocking(fd, True)
    return fd


def _problem_with(status: os.stat_result, path: str) -> str:
    """Why we must not write to an open file; empty if we may.

    We may if the file is ours, or if no other user can have put it there.
    """
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        return "the file has more than one hard link"
    if status.st_uid == os.geteuid() or stat.S_ISCHR(status.st_mode):
        return ""
    folder = os.stat(os.path.dirname(os.path.abspath(path)) or "/")
    # In a folder where only we can create files, a foreign owner means that a network disk maps our
    # user to another one.
    mine = folder.st_uid == os.geteuid() and not folder.st_mode & 0o022
    return "" if mine or path.startswith(("/dev/", "/proc/")) else "it belongs to another user"


def write_report(path: str, text: str) -> None:
    """Write a report to the path that the user gave. A new file is readable by its owner only.

    Files and links of other users are refused. Pipes and terminals are fine
    (`--html >(gzip > page.gz)`). An existing file keeps its mode.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise UnsafeFileError(errno.ENXIO, "it is a pipe that no process reads", path) from error
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        if os.lstat(path).st_uid not in (os.geteuid(), 0):
            raise UnsafeFileError(errno.ELOOP, "it is a symbolic link of another user", path) from error
        fd = os.open(path, flags, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        status = os.fstat(fd)
        problem = _problem_with(status, path)
        if problem:
            raise UnsafeFileError(errno.EPERM, problem, path)
        os.set_blocking(fd, True)
        if stat.S_ISREG(status.st_mode):
            os.ftruncate(fd, 0)
        file.write(text)
