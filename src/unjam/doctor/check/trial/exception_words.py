"""Describes exceptions as plain data that outlives the process."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from unjam.system.file_owner import is_users


def described(error: BaseException) -> dict[str, Any]:
    """An exception as plain data, and whether torch could send it to the main process."""
    return {**words_of(error), "crosses": _pickle_error(error)}


def words_of(error: BaseException) -> dict[str, Any]:
    """The type, message, traceback and place of an exception, as plain data."""
    trace = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in trace if is_users(frame.filename)]
    last = users[-1] if users else None
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - its __str__ failed
        message = ""
    return {
        "type": type(error).__qualname__,
        "message": message[:2000],
        "trace": text[-4000:],
        "file": last.filename if last else "",
        "line": last.lineno if last else 0,
    }


def _pickle_error(error: BaseException) -> str:
    """Why torch cannot send an exception to the main process; "" if it can."""
    from torch._utils import ExceptionWrapper  # noqa: PLC0415 - imported by the program

    try:
        wrapped = ExceptionWrapper((type(error), error, error.__traceback__))
        pickle.loads(pickle.dumps(wrapped))
    except Exception as problem:  # noqa: BLE001 - any error is the answer
        return f"{type(problem).__name__}: {problem}"
    return ""
