"""Who owns a source file: Python, an installed package, unjam, or the user.

The folder of the file decides, never a word inside the path: a user's project may be called
`unjam`, may be in `/data/lib/python3/`, or may have `site-packages` in a file name. Files of
another process (`unjam why`) may belong to another interpreter. So we check whether a folder that
looks like an interpreter's library really is one.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from typing import Any

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# each rule has two small programs; they count as user code
_PROGRAMS = os.path.join(HERE, "doctor", "rules", "programs", "")
_INSTALLED = re.compile(r"/(site|dist)-packages/")
_LIBRARY = re.compile(r"^(.*?/lib(?:64)?/(?:python|pypy)3\.\d+t?)/")
_ZIPPED = re.compile(r"/python3\d+\.zip/")


def is_ours(file: str) -> bool:
    """Whether a file belongs to unjam."""
    return file.startswith(HERE + os.sep) and not file.startswith(_PROGRAMS)


def is_pythons(file: str) -> bool:
    """Whether a file belongs to Python itself: to this interpreter or to another one."""
    file = file.replace("\\", "/")
    if file.startswith("<frozen") or (file.startswith(_standard_folders()) and not _INSTALLED.search(file)):
        return True
    found = _LIBRARY.match(file)
    if found is not None and not _INSTALLED.search(file):
        return _has_a_standard_library(found[1])
    return bool(_ZIPPED.search(file))


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    file = file.replace("\\", "/")
    return bool(_INSTALLED.search(file)) or is_pythons(file) or _is_in_a_package_folder(file)


def is_users(file: str) -> bool:
    """Whether a file is the user's own. Notebook cells and prompt input count, too."""
    if is_ours(file) or is_installed(file):
        return False
    return not file.startswith("<") or "ipynb" in file or file.startswith(("<stdin>", "<ipython-input"))


@functools.cache
def _standard_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    named = [paths[key] for key in ("stdlib", "platstdlib") if key in paths]
    folders = {os.path.realpath(path) for path in named} | set(named) | {os.path.dirname(os.__file__)}
    return tuple(folder.replace("\\", "/") + "/" for folder in folders if folder)


@functools.lru_cache(1024)
def _has_a_standard_library(folder: str) -> bool:
    return os.path.isfile(f"{folder}/os.py") or os.path.isfile(f"{folder}/os.pyc")


def _is_in_a_package_folder(file: str) -> bool:
    """Whether pip installed a file into another folder of `sys.path`, for example with `--target`."""
    for entry in sys.path:
        folder = entry.replace("\\", "/").rstrip("/")
        if folder and file.startswith(folder + "/") and _installed_names(folder):
            top = file[len(folder) + 1 :].partition("/")[0]
            if top in _installed_names(folder):
                return True
    return False


@functools.lru_cache(256)
def _installed_names(folder: str) -> frozenset[str]:
    """Top-level files and folders that packages put into a folder, by their RECORD files."""
    found: set[str] = set()
    try:
        records = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
    except OSError:
        return frozenset()
    for name in records:
        try:
            with open(f"{folder}/{name}/RECORD", encoding="utf-8", errors="replace") as record:
                found.update(line.split(",")[0].partition("/")[0] for line in record)
        except OSError:
            continue
    return frozenset(found)


def calling_place() -> tuple[str, int]:
    """The nearest calling line of user code; without user code, the nearest one outside unjam."""
    frame: Any = sys._getframe(1)  # noqa: SLF001 - the way to ask who calls
    first = ("", 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_ours(file):
            here = (file, frame.f_lineno)
            first = first if first[0] else here
            if not is_installed(file):
                return here
        frame = frame.f_back
    return first


def calling_line() -> str:
    """`calling_place` as text."""
    file, line = calling_place()
    return f"{file}:{line}" if file else "an unknown line"
