"""Records what the program does to files and folders that its samples may need."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from types import ModuleType
from typing import Any

from unjam.doctor.check.target import openers
from unjam.doctor.check.target.observed_faults import limit_set
from unjam.doctor.check.target.observer import Observer, place_fields, worker_number
from unjam.system.import_hook import after_import

_EVENTS = {"os.remove": "removed", "os.rmdir": "removed", "shutil.rmtree": "removed", "os.rename": "moved", "os.chdir": "entered",
           "os.truncate": "cut"}  # fmt: skip
MOST = 400


def record_deeds(observer: Observer) -> None:
    """Write down removed and moved files and changed folders, each with the user's line."""
    count = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        done = _EVENTS.get(event)
        if event == "open" and observer.active:
            with contextlib.suppress(Exception):
                openers.hear(arguments, sys._getframe(1))  # noqa: SLF001 - the caller's frame
                if openers.cuts(arguments) and count[0] <= MOST and (at := place_fields(sys._getframe(1))):  # noqa: SLF001 - as above
                    count[0] += 1
                    observer.write(
                        "deed", done="cut", path=_full(arguments[0]), worker=worker_number(), pid=os.getpid(), **at
                    )
                if openers.is_exclusive(arguments[2]) and count[0] <= MOST:
                    place = place_fields(sys._getframe(1))  # noqa: SLF001 - as above
                    count[0] += 1
                    observer.write("exclusive", path=_full(arguments[0]), pid=os.getpid(), **place)
            return
        if event == "subprocess.Popen" and observer.active:
            with contextlib.suppress(Exception):
                openers.note_command(arguments[1], sys._getframe(1))  # noqa: SLF001 - the caller's frame
            return
        if event in ("fcntl.flock", "fcntl.lockf"):
            openers.note_lock()
            return
        if event == "resource.setrlimit" and observer.active:
            with contextlib.suppress(Exception):
                limit_set(observer, arguments, sys._getframe(1))  # noqa: SLF001 - the caller's frame
            return
        if done is None or count[0] > MOST or not observer.active:
            return
        with contextlib.suppress(Exception):
            path = _full(*arguments[:2])
            place = place_fields(sys._getframe(1))  # noqa: SLF001 - the caller's frame
            # a function registered with atexit is called by no line of the program
            if path and (place or event == "shutil.rmtree"):
                count[0] += 1
                observer.write("deed", done=done, path=path, worker=worker_number(), pid=os.getpid(), **place)

    sys.addaudithook(hook)
    after_import("multiprocessing.shared_memory", functools.partial(_patch_shared_memory, observer=observer))


def _patch_shared_memory(module: ModuleType, observer: Observer) -> None:
    """Write down which line removes a block of shared memory: the system call tells nobody."""
    unlink = module.SharedMemory.unlink

    @functools.wraps(unlink)
    def unlinked(this: Any) -> None:
        with contextlib.suppress(Exception):
            place = place_fields(sys._getframe(1))  # noqa: SLF001 - the caller's frame
            observer.write(
                "deed", done="removed", path=f"/{this.name}", worker=worker_number(), pid=os.getpid(), **place
            )
        unlink(this)

    module.SharedMemory.unlink = unlinked


def _full(path: Any, folder: Any = -1) -> str:
    """A path that may be relative to the current folder or to an open one."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    return os.path.abspath(text)
