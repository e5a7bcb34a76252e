"""Makes renames work that fail only in a view.

An overlay in a user namespace cannot rename a folder of the original (EXDEV), and one file system outside
may be several in a view. There `os.rename` and `os.replace` copy and remove instead. A rename that would
also fail on the original file systems still fails.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
from collections.abc import Callable
from typing import Any


def install(original: str) -> None:
    """Replace the functions in this process and its forks. original: where the original files are in this view."""
    if getattr(os.rename, "_unjam", False):
        return
    for name in ("rename", "replace"):
        setattr(os, name, _with_copy(getattr(os, name), original))


def _with_copy(function: Callable[..., None], original: str) -> Callable[..., None]:
    @functools.wraps(function)
    def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        try:
            function(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        except OSError as error:
            is_plain = src_dir_fd is None and dst_dir_fd is None
            if error.errno != errno.EXDEV or not is_plain or _device(src, original) != _device(dst, original):
                raise
            _copy_and_remove(os.fsdecode(src), os.fsdecode(dst), function)

    rename._unjam = True  # type: ignore[attr-defined] # noqa: SLF001 - tells that it is installed
    return rename


def _device(path: Any, original: str) -> int:
    """The file system that holds the original of a path's folder, or of the nearest folder above it."""
    folder = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
    while folder != "/":
        with contextlib.suppress(OSError):
            return os.stat(original + folder).st_dev
        folder = os.path.dirname(folder)
    return os.stat(original).st_dev


def _copy_and_remove(src: str, dst: str, rename: Callable[..., None]) -> None:
    copy = os.path.join(os.path.dirname(dst), f".{os.path.basename(dst)}.{os.getpid()}")
    try:
        if os.path.isdir(src) and not os.path.islink(src):
            shutil.copytree(src, copy, symlinks=True)
            rename(copy, dst)  # fails, as the first rename should have, if the target exists
            shutil.rmtree(src)
        else:
            shutil.copy2(src, copy, follow_symlinks=False)
            rename(copy, dst)
            os.unlink(src)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(copy)
        raise
