"""The event logs of a trial: one file per process, one line per event. They survive a kill."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import sys
import time
import traceback
from typing import Any

from unjam.doctor.facts.trial import Place, Raised
from unjam.system.file_owner import is_users

SUFFIX = ".rec"


class EventLog:
    """The log file of this process in the trial's folder."""

    def __init__(self, folder: str, worker: int, open_in: str = "") -> None:
        """open_in: another path of the folder, under which the file is opened."""
        self.folder = folder
        self.worker = worker
        self.pid = os.getpid()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(f"{open_in or folder}/{self.pid}{SUFFIX}", flags, 0o600)
        self.write("hello", worker=worker)

    def write(self, event: str, /, **fields: Any) -> None:
        """Append one event."""
        fields["k"] = event
        fields["t"] = time.monotonic()
        line = json.dumps(fields, default=str) + "\n"
        with contextlib.suppress(OSError):  # user code closed it, or the trial is over
            os.write(self._fd, line.encode("utf-8", "replace"))

    def record(self, fact: Any, /, **fields: Any) -> None:
        """Append a fact: an instance of one of the dataclasses of `doctor.facts`."""
        from unjam.doctor.facts.recording import encode  # noqa: PLC0415 - every interpreter of a program imports this module

        self.write("fact", type=type(fact).__name__, fact=encode(fact), **fields)

    def raised(self, error: BaseException, stage: str, index: str = "") -> None:
        """Append an exception of the trial."""
        fields = {**exception_fields(error), "index": index, "worker": self.worker, "process": self.pid}
        self.record(Raised(**fields, stage=stage, pickle_error=_pickle_error(error)))


def read(folder: str) -> dict[int, list[dict[str, Any]]]:
    """The events of every process, by pid."""
    found: dict[int, list[dict[str, Any]]] = {}
    for name in sorted(os.listdir(folder)):
        if not re.fullmatch(rf"\d{{1,10}}{re.escape(SUFFIX)}", name, re.ASCII):
            continue
        events = []
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # the process was killed during the write
                if isinstance(event, dict):
                    events.append(event)
        found[int(name.removesuffix(SUFFIX))] = events
    return found


def progress(folder: str) -> int:
    """The size of all logs in bytes; it grows as long as the trial makes progress."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.name.endswith(SUFFIX))
    return 0


def worker_number() -> int:
    """The number of this loader worker; -1 in any other process."""
    module = sys.modules.get("torch.utils.data._utils.worker")
    info = module.get_worker_info() if module is not None else None
    return info.id if info is not None else -1


def exception_fields(error: BaseException) -> dict[str, Any]:
    """The type, message, traceback and place of an exception, as the facts about it name them."""
    trace = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in trace if is_users(frame.filename)]
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - its __str__ failed
        message = ""
    return {
        "type_name": type(error).__qualname__,
        "message": message[:2000],
        "trace": text[-4000:],
        "place": Place(users[-1].filename, users[-1].lineno or 0) if users else None,
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
