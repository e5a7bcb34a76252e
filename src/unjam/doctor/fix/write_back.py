"""Writes an edited program back, without losing what another process saved in the meantime.

A file keeps its owner, mode, attributes, hard links and line endings. The original text is kept in
`FILE.orig`, unless git has it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
from dataclasses import dataclass

from unjam.deadlines import GIT_STATUS


class CannotWrite(Exception):
    """A file cannot be edited, and none was. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A file's content before and after the edit."""

    path: str
    before: bytes
    after: bytes


def write_back(files: list[Edited]) -> list[str]:
    """Write all files, or none; return the backups that were made."""
    for one in files:
        _check(one)
    backups: dict[str, str] = {}  # by file
    written: list[Edited] = []
    try:
        for one in files:
            if not _is_in_git(one):
                backups[one.path] = _back_up(one)
        for one in files:
            _write(one)
            written.append(one)
    except CannotWrite:
        for one in written:
            _write(Edited(one.path, one.after, one.before))
        for path in backups.values():
            os.unlink(path)
        raise
    return list(backups.values())


def _check(one: Edited) -> None:
    try:
        status = os.stat(one.path)
        if not status.st_mode & 0o222 or not os.access(one.path, os.W_OK):
            raise CannotWrite(f"{one.path} is read-only")
        with open(one.path, "r+b") as file:  # an immutable file is refused here
            now = file.read()
    except OSError as error:
        raise CannotWrite(f"{one.path} cannot be written: {error.strerror}") from error
    if now != one.before:
        raise CannotWrite(f"{one.path} has changed since unjam read it; run unjam check --fix again")


def _write(one: Edited) -> None:
    path = os.path.realpath(one.path)
    status = os.stat(path)
    try:
        if status.st_nlink > 1 or not _replace(one, path, status):
            _check(one)
            with open(path, "r+b") as file:  # keeps its hard links or its owner
                file.write(one.after)
                file.truncate()
    except OSError as error:
        raise CannotWrite(f"{one.path} cannot be written: {error.strerror}") from error


def _replace(one: Edited, path: str, status: os.stat_result) -> bool:
    """Replace the file atomically; False if the new file could not have the same owner."""
    folder, name = os.path.split(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    except OSError:
        return False  # not permitted to create files there
    try:
        with open(handle, "wb") as file:
            file.write(one.after)
            file.flush()
            os.fsync(file.fileno())
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(temporary, status.st_uid, status.st_gid)
        for attribute in os.listxattr(path):
            os.setxattr(temporary, attribute, os.getxattr(path, attribute))
        os.chmod(temporary, stat.S_IMODE(status.st_mode))
        _check(one)
        os.replace(temporary, path)
    except CannotWrite:
        raise
    except OSError:
        return False
    else:
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _back_up(one: Edited) -> str:
    for number in range(100):
        path = f"{one.path}.orig" + (f".{number}" if number else "")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            raise CannotWrite(f"{one.path} is not edited: {path} cannot be written: {error.strerror}") from error
        with open(handle, "wb") as file:
            file.write(one.before)
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(one.path).st_mode))
        return path
    raise CannotWrite(f"{one.path} is not edited: it already has a hundred backups")


def _is_in_git(one: Edited) -> bool:
    """Whether git's last commit contains exactly this text. `git status` can be configured to ignore a file, so it is not used."""
    folder, name = os.path.split(os.path.realpath(one.path))
    others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    git = ["git", "-C", folder, "-c", "core.fsmonitor=false", "cat-file", "blob", f"HEAD:./{name}"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(git, capture_output=True, check=False, timeout=GIT_STATUS.seconds, env=others)
        return done.returncode == 0 and done.stdout == one.before
    return False
