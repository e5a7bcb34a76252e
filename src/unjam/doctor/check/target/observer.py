"""The observer of a process of an unmodified program: it writes what it sees to the process's event log.

Nothing here may raise an exception into the program or change its behaviour.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from unjam.deadlines import PROGRAM_HELD, TRIAL_CHECK
from unjam.doctor.check.cleanup_process import WATCH_VARIABLE
from unjam.doctor.check.event_log import EventLog, exception_fields, worker_number
from unjam.doctor.check.processes import pause
from unjam.doctor.facts.faults import WatchedFailure
from unjam.doctor.facts.trial import Place, users_place
from unjam.system.by_identity import ByIdentity
from unjam.system.isolation import redirect
from unjam.system.isolation.program_files import ProgramFiles
from unjam.system.isolation.redirect import SITE
from unjam.system.private_files import own_folder
from unjam.system.proc_files import read_text

# files in the folder of the program: its first process; this process waits at its end; it may end; see `Observer.stops_early`
LEADER, WAITS_AT_END, MAY_END, STOP_EARLY = "leader", "waits-at-end", "may-end", "stop-early"


class Observer:
    """The observer of this process; a fork gets another event log."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.environment = dict(os.environ)
        self.steps = 0  # of all optimizers
        self.optimizer = 0  # the number of the one that stepped last
        self.optimizers: ByIdentity[int] = ByIdentity()
        self.known_optimizers = 0
        self.captured = False  # a twin of this process exists
        self.active = True
        self.stops_early = os.path.exists(f"{folder}/{STOP_EARLY}")  # each process ends when it first uses a loader
        # for each loader in use: its number, the number of the epoch, batches so far, and batches of all epochs
        self.open_epochs: Callable[[], list[tuple[int, int, int, int]]] = list
        self._log: EventLog | None = None
        self._lock = threading.RLock()

    def write(self, event: str, /, **fields: Any) -> None:
        """Append an event to this process's log."""
        with contextlib.suppress(Exception):  # an error here must not stop the program
            if self.active:
                self._own_log().write(event, **fields)

    def record(self, fact: Any, /, **fields: Any) -> None:
        """Append a fact to this process's log."""
        with contextlib.suppress(Exception):  # as above
            if self.active:
                self._own_log().record(fact, **fields)

    def stop(self) -> None:
        """Stop observing: this process has become a twin."""
        self.active = False
        os.environ.pop(WATCH_VARIABLE, None)
        if redirect.VARIABLE in os.environ:
            return  # new interpreters of a trial must redirect files too
        rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != SITE]
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
        if not rest:
            del os.environ["PYTHONPATH"]

    def _own_log(self) -> EventLog:
        log = self._log
        if log is None or log.pid != os.getpid():
            self.captured = False
            with own_folder(self.folder) as at:  # this process may outlive the doctor and the folder
                log = self._log = EventLog(self.folder, worker_number(), at)
            log.write("process", parent=os.getppid(), rank=rank())
        return log

    def record_failure(self, stage: str, error: BaseException, **fields: Any) -> None:
        """Record an exception that passes through the observer. `fields`: those of WatchedFailure."""
        with contextlib.suppress(Exception):
            known: dict[str, Any] = {}
            with contextlib.suppress(Exception):
                from unjam.doctor.check.target.error_context import context_of  # noqa: PLC0415 - only when something fails

                known = context_of(error)
            thread = threading.current_thread()
            if thread is not threading.main_thread():
                known["thread"] = thread.name
            values = {**exception_fields(error), "at": time.monotonic(), "pid": os.getpid(), **known, **fields}
            self.record(WatchedFailure(stage=stage, **values))

    def record_exit(self) -> None:
        """Record the exception that ends the interpreter, if any, then wait until the trials are done.

        The program's servers and temporary folders must exist as long as trials run.
        """
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self.write("end")
        if isinstance(error, BaseException):
            self.record(WatchedFailure("end", **exception_fields(error), at=time.monotonic()))
        with contextlib.suppress(OSError, ValueError, TypeError), own_folder(self.folder) as at:
            ProgramFiles.load(at).note_if_full()
        if not self.captured or not self._is_leader():
            return
        with contextlib.suppress(OSError), own_folder(self.folder) as at:
            with open(f"{at}/{WAITS_AT_END}", "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
            until = time.monotonic() + PROGRAM_HELD.seconds
            while time.monotonic() < until and not os.path.exists(f"{at}/{MAY_END}"):
                pause(TRIAL_CHECK.seconds)

    def _is_leader(self) -> bool:
        """Whether this is the program's first process, which waits for the others, such as ranks."""
        with contextlib.suppress(OSError), own_folder(self.folder) as at:
            return read_text(f"{at}/{LEADER}") == str(os.getpid())
        return False


def observed_environment(variables: dict[str, str]) -> dict[str, str]:
    """The environment of an examined program. With variables, its interpreters run `begin`."""
    if not variables:
        return dict(os.environ)
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, **variables, "PYTHONPATH": SITE + (os.pathsep + path if path else "")}


def users_line() -> Place | None:
    """The innermost line of the user's code on this thread's stack."""
    return users_place(sys._getframe(1))  # noqa: SLF001 - the only way


def rank() -> int | None:
    """The rank of this process in its distributed job; None outside of one."""
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() and "WORLD_SIZE" in os.environ else None


def current_folder() -> str:
    """The current folder; empty if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def length_of(obj: Any) -> int | None:
    """The length of an object; None if it has none, or if computing it fails."""
    try:
        return len(obj)
    except Exception:  # noqa: BLE001 - the user's code
        return None


def replace_everywhere(function: Any, name: str, patched: Any, *owners: ModuleType | None) -> None:
    """Put a patched function into every module that has the original under this name."""
    for owner in owners:
        if getattr(owner, name, None) is function:
            vars(owner)[name] = patched
