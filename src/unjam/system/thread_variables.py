"""Environment variables about threads: which of them no code in this process reads."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable, Mapping

from unjam.system.file_owner import is_installed, is_ours

# libraries read these when they are loaded; setting one makes sense even without the library
KNOWN = {
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", "NUMBA_NUM_THREADS", "OPENCV_FOR_THREADS_NUM", "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS", "GOTO_NUM_THREADS", "OMP_THREAD_LIMIT",
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "MKL_DOMAIN_NUM_THREADS", "ARROW_IO_THREADS",
}  # fmt: skip


def read_by_nobody(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with THREADS in their name that no loaded library or module mentions."""
    suspects = {name: value for name, value in variables.items() if "THREADS" in name and name not in KNOWN}
    for path in _libraries():
        if not suspects:
            return {}
        for name in _occurring(path, suspects):
            del suspects[name]
    for path in _modules() if suspects else ():
        for name in _occurring(path, suspects):
            del suspects[name]
    return suspects


def _occurring(path: str, names: Iterable[str]) -> list[str]:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return [name for name in names if data.find(name.encode()) >= 0]
    except (OSError, ValueError):
        return []


def _libraries() -> list[str]:
    found = set()
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")[2]
                if ".so" in path:
                    found.add("/" + path)
    except OSError:
        pass
    return sorted(found)


def _modules() -> list[str]:
    """The sources of installed modules. User code is left out: it mentions what it sets."""
    found = []
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not is_ours(path) and is_installed(path):
            found.append(path)
    return found


def set_by_program(before: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that were set or changed since `before`."""
    return {name: value for name, value in os.environ.items() if before.get(name) != value}
