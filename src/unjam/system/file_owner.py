"""Whose a source file is: Python's, an installed package's, unjam's, or the user's own.

Decided by folders, never by a word inside a path: a user's project may be called `unjam`, lie in `/data/lib/python3/`, or have
`site-packages` in the name of a file. Files of another process (`unjam why`) may belong to another interpreter, so a folder that
looks like an interpreter's library is asked whether it is one.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
# each rule has two small programs inside, which stand for a user's
_RULES = (os.path.join(HERE, "rules", "uj"), os.path.join(HERE, "rules", "programs.py"))
_INSTALLED = re.compile(r"/(site|dist)-packages/")
_LIBRARY = re.compile(r"^(.*?/lib(?:64)?/(?:python|pypy)3\.\d+t?)/")
_ZIPPED = re.compile(r"/python3\d+\.zip/")


def is_ours(file: str) -> bool:
    """Whether a file is unjam's."""
    return file.startswith(HERE + os.sep) and not file.startswith(_RULES)


def is_pythons(file: str) -> bool:
    """Whether a file belongs to Python itself: this one, or the one of another process."""
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
    """Whether a file is the user's own; a cell of a notebook and what is typed at a prompt are."""
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
    """Whether pip put it into a folder of the path that is no `site-packages`: `--target`, a build system's, a module file's."""
    for entry in sys.path:
        folder = entry.replace("\\", "/").rstrip("/")
        if folder and file.startswith(folder + "/") and _installed_names(folder):
            top = file[len(folder) + 1 :].partition("/")[0]
            if top in _installed_names(folder):
                return True
    return False


@functools.lru_cache(256)
def _installed_names(folder: str) -> frozenset[str]:
    """What the records of the packages in a folder say was put there, by its first name."""
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


def calling_line() -> str:
    """The line of the program that is running: the nearest that is none of ours, and none of a library's if there is one."""
    frame: Any = sys._getframe(1)  # noqa: SLF001 - the way to ask who calls
    first = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_ours(file):
            here = f"{file}:{frame.f_lineno}"
            first = first or here
            if not is_installed(file):
                return here
        frame = frame.f_back
    return first or "an unknown line"
