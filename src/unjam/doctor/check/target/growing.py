"""What a process holds, as small numbers that can be compared over time: memory, descriptors, and the containers of its loop."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from types import FrameType
from typing import Any

from unjam.system.file_owner import is_users

MOST_FRAMES, MOST_NAMES = 3, 60
_CONTAINERS = (list, dict, set, deque)


def resources() -> dict[str, int]:
    """The descriptors, threads, memory and children of this process."""
    found = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        found["descriptors"] = len(os.listdir("/proc/self/fd"))
        found["threads"] = len(os.listdir("/proc/self/task"))
        with open("/proc/self/statm", encoding="ascii") as file:
            found["memory"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            found["children"] = len(file.read().split())
    return found


def containers(frame: FrameType | None) -> dict[str, list[int]]:
    """The containers that the user's frames and their objects hold: length, bytes of one item, and whether it holds a graph."""
    found: dict[str, list[int]] = {}
    frames = 0
    while frame is not None and frames < MOST_FRAMES:
        if is_users(frame.f_code.co_filename):
            frames += 1
            for name, value in list(frame.f_locals.items()):
                _add(found, name, value, direct=True)
                own = getattr(value, "__dict__", None)
                if isinstance(own, dict) and not isinstance(value, type) and type(value).__module__ != "builtins":
                    for inner, part in list(own.items())[:30]:
                        _add(found, f"{name}.{inner}", part, direct=False)
        frame = frame.f_back
    return found


def _add(found: dict[str, list[int]], path: str, value: Any, *, direct: bool) -> None:
    if len(found) >= MOST_NAMES or path.startswith("__"):
        return
    if isinstance(value, _CONTAINERS) and value:
        item = _last(value)
        found[path] = [len(value), _bytes(item), int(_has_graph(item))]
    elif not direct and _has_graph(value):
        found[path] = [1, _bytes(value), 1]


def _last(container: Any) -> Any:
    if isinstance(container, dict):
        return next(reversed(container.values()))
    return container[-1] if isinstance(container, (list, deque)) else next(iter(container))


def _tensor(item: Any) -> Any:
    """The first tensor of an item."""
    for _ in range(3):
        if hasattr(item, "untyped_storage"):
            return item
        if isinstance(item, dict):
            item = list(item.values())
        if not isinstance(item, (list, tuple)) or not item:
            return None
        item = next((one for one in item if hasattr(one, "untyped_storage")), item[0])
    return None


def _has_graph(item: Any) -> bool:
    tensor = _tensor(item)
    return tensor is not None and tensor.requires_grad and not tensor.is_leaf


def _bytes(item: Any) -> int:
    tensor = _tensor(item)
    with contextlib.suppress(Exception):
        if tensor is not None:
            return int(tensor.untyped_storage().nbytes())
        return int(getattr(item, "nbytes", 0)) or sys.getsizeof(item)
    return 0
