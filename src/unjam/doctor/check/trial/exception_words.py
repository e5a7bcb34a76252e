"""Exceptions in words that survive the process."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from unjam.system.file_owner import is_users


def described(error: BaseException) -> dict[str, Any]:
    """An exception in words that survive the process."""
    trace = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in trace if is_users(frame.filename)]
    last = users[-1] if users else None
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - exceptions with an odd __str__
        message = ""
    return {
        "type": type(error).__qualname__,
        "message": message[:2000],
        "trace": text[-4000:],
        "file": last.filename if last else "",
        "line": last.lineno if last else 0,
        "crosses": _crosses(error),
    }


def _crosses(error: BaseException) -> str:
    """Why torch could not send an exception: it sends the class and the text."""
    from torch._utils import ExceptionWrapper  # noqa: PLC0415 - as above

    try:
        wrapped = ExceptionWrapper((type(error), error, error.__traceback__))
        pickle.loads(pickle.dumps(wrapped))
    except Exception as problem:  # noqa: BLE001 - whatever pickling raises is the answer
        return f"{type(problem).__name__}: {problem}"
    return ""
