"""Which line of the program is running."""

from __future__ import annotations

import sys
from typing import Any

from unjam.whose import is_installed, is_ours


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
