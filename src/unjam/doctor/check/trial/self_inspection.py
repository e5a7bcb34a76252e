"""On a signal, a stuck process reports its lines, its locks and its threads.

The handler is Python code. It runs while the main thread waits in Python for a lock, a socket, a child or
time. If it does not run, the main thread is in native code.
"""

from __future__ import annotations

import ast
import itertools
import json
import linecache
import os
import signal
import sys
import threading
import traceback
from typing import Any

from unjam.doctor.check.inventory import has_methods, kind_of, lock_state
from unjam.doctor.facts.object_state import ObjectState
from unjam.doctor.facts.recording import encode
from unjam.doctor.facts.trial import SyncObject

REPORT_SIGNAL = signal.SIGRTMIN + 5
STACK_SIGNAL = signal.SIGRTMIN + 6
DEEPEST = 30

object_names: dict[int, str] = {}  # id of an object -> its path in the dataset


def write_report(folder: str, _number: int, frame: Any) -> None:
    """Write a report about what this process waits for."""
    report = {
        "frames": _frames(frame),
        "syncs": _syncs(frame),
        "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
    }
    text = json.dumps(report, default=str)
    fd = os.open(f"{folder}/{os.getpid()}.report", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode("utf-8", "replace"))
    finally:
        os.close(fd)


def _frames(frame: Any) -> list[tuple[str, int, str]]:
    calls = itertools.islice(traceback.walk_stack(frame), DEEPEST)
    return [(one.f_code.co_filename, line, one.f_code.co_name) for one, line in calls]


def _syncs(frame: Any) -> list[dict[str, Any]]:
    """The locks, queues and futures that the lines of the innermost frames use."""
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    for one, _ in itertools.islice(traceback.walk_stack(frame), 8):
        for text, obj in _named(one):
            if id(obj) in seen:
                continue
            state = state_of(obj)
            if state is not None:
                seen.add(id(obj))
                path = object_names.get(id(obj)) or text.replace("self.", "dataset.", 1)
                found.append(encode(SyncObject(path, f"{type(obj).__module__}.{type(obj).__qualname__}", state)))
    return found


def _named(frame: Any) -> list[tuple[str, Any]]:
    """The expressions in a frame's current line and their values, without calling functions."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    found = []
    for text in _expressions(line):
        value = _value(text, frame)
        if value is not None:
            found.append((text, value))
    return found


def _expressions(line: str) -> list[str]:
    if line.endswith(":"):
        line += " pass"
    try:
        tree = ast.parse(line)
    except SyntaxError:
        try:
            tree = ast.parse(line.removeprefix("return ").removeprefix("yield "))
        except SyntaxError:
            return []
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Attribute, ast.Name, ast.Subscript))]


def _value(text: str, frame: Any) -> Any:
    head, *rest = text.split(".")
    space = {**frame.f_globals, **frame.f_locals}
    value = space.get(head)
    for name in rest:
        if not name.isidentifier():
            return None
        try:
            value = getattr(value, name)
        except Exception:  # noqa: BLE001 - a property of the user's
            return None
    return value


# kind -> the methods that tell it
_OTHERS = {
    "future": ("result", "done"), "event": ("wait", "is_set"), "barrier": ("wait", "abort", "reset"), "condition": ("wait", "notify"),
}  # fmt: skip


def state_of(obj: Any) -> ObjectState | None:
    """The state of a lock, queue, event or future; None for other objects."""
    kind = kind_of(obj)
    try:
        if kind == "lock":
            return lock_state(obj)
        if kind == "queue":
            between = type(obj).__module__.startswith("multiprocessing")
            full = bool(obj.full()) if has_methods(obj, "full") else False
            return ObjectState("queue", between_processes=between, empty=bool(obj.empty()), full=full)
        if kind == "executor":
            threads = getattr(obj, "_threads", None) or ()
            running = set(sys._current_frames())  # noqa: SLF001
            return ObjectState("executor", count=len(threads), alive=sum(one.ident in running for one in threads))
        if kind == "thread":
            return ObjectState("thread", alive=int(obj.ident in sys._current_frames()))  # noqa: SLF001
        if kind == "loop":
            return ObjectState("loop")
        for known, methods in _OTHERS.items():
            if has_methods(obj, *methods):
                return ObjectState(known)
    except Exception:  # noqa: BLE001 - the object's own code failed
        return None
    return None
