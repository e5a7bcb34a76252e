"""Reads from a Python stack what a process is doing: its loader, stage, sample and worker number."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping

from unjam.doctor.facts.object_state import ObjectState
from unjam.doctor.facts.scene import Activity
from unjam.doctor.facts.trial import SyncObject
from unjam.system.file_owner import is_pythons, is_users
from unjam.system.proc_files import is_number
from unjam.system.stacks import Frame

Values = tuple[Mapping[str, str], ...]

# the packages of the standard library that the paths below name
_STANDARD_LIBRARY = ("multiprocessing/", "concurrent/")

_POOLS = (("multiprocessing/pool.py", "worker"), ("concurrent/futures/process.py", "_process_worker"))
# library functions in which a main process starts, ends or waits for its workers: (file, functions, loader, stage)
_CALLS = (
    ("torch/utils/data/dataloader.py", ("_try_get_data", "_get_data", "_next_data"), "torch", "waits"),
    ("torch/utils/data/dataloader.py", ("_shutdown_workers", "__del__"), "torch", "stopping"),
    ("torch/utils/data/dataloader.py", ("__init__",), "torch", "starting"),
    ("unjam/loader/driver/driver.py", ("next",), "unjam", "waits"),
    ("multiprocessing/pool.py", ("get", "wait", "next"), "pool", "waits"),
    ("multiprocessing/queues.py", ("get",), "pool", "waits"),
    ("concurrent/futures/_base.py", ("result", "wait", "result_iterator"), "pool", "waits"),
    ("multiprocessing/process.py", ("join",), "process", "stopping"),
    ("multiprocessing/pool.py", ("join",), "process", "stopping"),
    ("multiprocessing/connection.py", ("recv", "wait", "recv_bytes"), "process", "waits"),
)
# functions that get the next indices from the sampler
_DRAWS = (("torch/utils/data/dataloader.py", "_next_index"), ("unjam/loader/driver/index_source.py", "next"))
_INLINE = ("torch/utils/data/_utils/fetch.py", "unjam/loader/worker/fetching.py")


def frame_is_in(frame: Frame, file: str, *functions: str) -> bool:
    """Whether a frame is in this library file and, if any are given, in one of these functions."""
    if functions and frame.function not in functions:
        return False
    path = "/" + frame.file.replace("\\", "/")
    return path.endswith("/" + file) and (not file.startswith(_STANDARD_LIBRARY) or is_pythons(frame.file))


def find_frame(frames: tuple[Frame, ...], file: str, *functions: str) -> int:
    """Return the position of the outermost frame in this file and one of these functions, or -1."""
    return next((n for n in range(len(frames) - 1, -1, -1) if frame_is_in(frames[n], file, *functions)), -1)


def worker_activity(frames: tuple[Frame, ...], values: Values) -> Activity | None:
    """Return what a worker does; None: the process is not a worker."""
    loop = find_frame(frames, "torch/utils/data/_utils/worker.py", "_worker_loop")
    if loop >= 0:
        known = values[loop] if loop < len(values) else {}
        stage, index = _stage(frames[:loop], values)
        first = stage in ("init", "made") or (
            bool(index) and _is_first_of_batch(inner=frames[:loop], values=values, index=index)
        )
        return Activity(
            "torch",
            stage,
            index,
            _number(known.get("worker_id")),
            _number(known.get("idx")),
            _number(known.get("num_workers")),
            first=first,
        )
    for file, function in _POOLS:
        loop = find_frame(frames, file, function)
        if loop >= 0:
            inner = [f for f in frames[:loop] if not is_pythons(f.file)]
            return Activity("pool", "task" if inner else "idle")
    if find_frame(frames, "unjam/loader/worker/main.py") >= 0:
        fetch = find_frame(frames, "unjam/loader/worker/fetching.py")
        return Activity(
            "unjam", "sample" if fetch >= 0 else "idle", _index(frames[: fetch + 1], values) if fetch >= 0 else ""
        )
    bootstrap = find_frame(frames, "multiprocessing/process.py", "_bootstrap")
    starts = find_frame(frames, "multiprocessing/spawn.py", "spawn_main", "_main", "prepare")
    if bootstrap >= 0:
        if find_frame(frames[:bootstrap], "multiprocessing/util.py", "_exit_function") >= 0:
            return Activity("process", "end")
        return Activity("process", "task")
    if starts >= 0:
        return Activity("process", "start")
    return None


def _stage(inner: tuple[Frame, ...], values: Values) -> tuple[str, str]:
    """Return the stage and the sample of a torch worker, from the frames inside its loop."""
    if not inner:
        return "idle", ""
    callee = inner[-1]
    if frame_is_in(callee, "multiprocessing/queues.py", "get") or frame_is_in(
        callee, "torch/utils/data/_utils/worker.py", "is_alive"
    ):
        return "idle", ""
    if frame_is_in(callee, "multiprocessing/queues.py", "put"):
        return "send", ""
    fetch = find_frame(inner, "torch/utils/data/_utils/fetch.py", "fetch")
    if fetch >= 0:
        index = _index(inner[: fetch + 1], values)
        collates = "collate_fn(" in linecache.getline(inner[fetch].file, inner[fetch].line or 0)
        return ("collate", _batch(values, fetch)) if collates else ("sample", index)
    if callee.function == "create_fetcher":
        return "made", ""
    return "init", ""


def _is_first_of_batch(inner: tuple[Frame, ...], values: Values, index: str) -> bool:
    """Whether a sample is the first of its batch."""
    fetch = find_frame(inner, "torch/utils/data/_utils/fetch.py", "fetch")
    whole = _batch(values, fetch).strip("[]( ")
    return whole.partition(",")[0].strip() == index


def _index(frames: tuple[Frame, ...], values: Values) -> str:
    """Return the fetcher's loop variable, else the indices of the batch."""
    for n in range(len(frames) - 1, -1, -1):
        known = values[n] if n < len(values) else {}
        if not any(frame_is_in(frames[n], file) for file in _INLINE):
            continue
        for name in ("idx", "one"):  # the variable's name in torch's fetcher and in unjam's
            if name in known:
                return known[name]
    return _batch(values, len(frames) - 1)


def _batch(values: Values, n: int) -> str:
    known = values[n].get("possibly_batched_index", "") if 0 <= n < len(values) else ""
    return "" if "None" in known else known


def progress(frames: tuple[Frame, ...], values: Values, arguments: Values) -> str:
    """Return text that changes from one sample to the next.

    It is the list that a fetcher fills, or the arguments of the user's outermost function.
    """
    for n in range(len(frames) - 1, -1, -1):
        if n < len(values) and any(frame_is_in(frames[n], file, "fetch") for file in _INLINE):
            return values[n].get("data", "")
        if n < len(arguments) and is_users(frames[n].file):
            return str(arguments[n])
    return ""


def _number(text: str | None) -> int:
    return int(text) if text and is_number(text) else -1


def main_activity(frames: tuple[Frame, ...], values: Values) -> Activity:
    """Return what a main process does."""
    inline = max(find_frame(frames, file, "fetch") for file in _INLINE)
    if (
        find_frame(frames, "unjam/loader/driver/driver.py", "next") >= 0
        and find_frame(frames, "unjam/loader/worker/fetching.py") < 0
    ):
        return Activity("unjam", "waits")
    if inline >= 0:
        index = _index(frames[: inline + 1], values)
        ours = frame_is_in(frames[inline], "unjam/loader/worker/fetching.py")
        collates = "collate_fn(" in linecache.getline(frames[inline].file, frames[inline].line or 0)
        if ours:
            collates = find_frame(frames[: inline + 1], "unjam/loader/worker/fetching.py", "_batch_of", "_convert") >= 0
        return Activity(
            "unjam" if ours else "torch",
            "collate" if collates else "sample",
            _batch(values, inline) if collates else index,
        )
    draws = max(find_frame(frames, file, function) for file, function in _DRAWS)
    if draws > 0 and any(is_users(frame.file) for frame in frames[:draws]):
        return Activity("unjam" if "unjam" in frames[draws].file else "torch", "sampler")
    found = None
    for frame in frames:
        if is_users(frame.file):
            break
        found = _library_call(frame) or found  # the outermost call says most
    return found or Activity("", "elsewhere")


def _library_call(frame: Frame) -> Activity | None:
    for file, functions, loader, stage in _CALLS:
        if frame_is_in(frame, file, *functions):
            return Activity(loader, stage)
    return None


def collective(frames: tuple[Frame, ...]) -> str:
    """Return the torch.distributed function that user code called, if the stack is in one."""
    found = ""
    for frame in frames:
        if "/torch/distributed/" in frame.file.replace("\\", "/") and not frame.function.startswith("wrapper"):
            found = frame.function
        elif is_users(frame.file):
            break
    return found


# -- what a line waits for -------------------------------------------------------------------------

# functions of the standard library that user code calls to wait: (file, functions, kind)
_KINDS = (
    ("multiprocessing/queues.py", ("get", "put"), "queue"),
    ("multiprocessing/managers.py", (), "queue"),
    ("multiprocessing/synchronize.py", ("wait",), "event"),
    ("multiprocessing/synchronize.py", ("__enter__", "acquire"), "lock"),
    ("multiprocessing/connection.py", (), "pipe"),
    ("multiprocessing/pool.py", (), "future"),
    ("multiprocessing/process.py", ("join",), "child"),
    ("multiprocessing/popen_fork.py", (), "child"),
    ("queue.py", ("get", "put"), "queue"),
    ("queue.py", ("join",), "queue"),
    ("threading.py", ("join",), "thread"),
    ("threading.py", ("wait", "wait_for"), "event"),
    ("threading.py", ("acquire", "__enter__"), "lock"),
    ("concurrent/futures/_base.py", (), "future"),
    ("concurrent/futures/thread.py", (), "executor"),
    ("concurrent/futures/process.py", (), "executor"),
    ("asyncio/", (), "loop"),
    ("subprocess.py", (), "child"),
)


def sync_object_of(frames: tuple[Frame, ...], values: Values) -> SyncObject | None:
    """Return the queue, future, event or lock that the user's line waits for, if any."""
    for n, frame in enumerate(frames):
        if not is_pythons(frame.file):
            return None
        outside = n + 1 >= len(frames) or not is_pythons(frames[n + 1].file)
        if not outside:
            continue
        for file, functions, kind in _KINDS:
            if _is_file(frame.file, file) and (not functions or frame.function in functions):
                own = (values[n].get("self", "") if n < len(values) else "").partition(" at ")[0].strip("<")
                between = file.startswith("multiprocessing/")
                state = ObjectState(_by_class(own, kind), between_processes=between, call=frame.function)
                return SyncObject(own or os.path.basename(frame.file), own, state)
        return None
    return None


def _is_file(path: str, file: str) -> bool:
    """Whether a standard library path is this file, or is inside this folder (`asyncio/`)."""
    path = path.replace("\\", "/")
    return f"/{file}" in path if file.endswith("/") else path.endswith(f"/{file}")


def _by_class(own: str, kind: str) -> str:
    """Tell events, conditions and barriers apart by class: they all wait in the same functions."""
    for word in ("Condition", "Barrier", "Event"):
        if own.endswith(word):
            return word.lower()
    return "lock" if own.endswith("Semaphore") else kind
