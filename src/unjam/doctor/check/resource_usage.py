"""The resources of a process as numbers to compare over time: memory, descriptors, the sizes of containers."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections import deque
from collections.abc import Iterable
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

from unjam.doctor.check.inventory import module_file
from unjam.doctor.facts.trial import users_frames
from unjam.system.file_owner import is_users
from unjam.system.limits import resident_bytes
from unjam.system.proc_files import descriptor_target, read_text

MOST_FRAMES, MOST_NAMES, DEEPEST, EXAMINED = 3, 60, 2, 12
MOST_OBJECTS, MOST_ITEMS = 300, 40
_CONTAINERS = (list, dict, set, deque)
GRAPH, SHARED = 1, 2  # flags: items of a container hold an autograd graph, or shared memory


def resources() -> dict[str, int]:
    """The descriptors, threads, memory and children of this process."""
    found = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        names = os.listdir("/proc/self/fd")
        found["descriptors"] = len(names)
        found["files"] = len(names) - _shared_memory(names)
        found["threads"] = len(os.listdir("/proc/self/task"))
        found["memory"], _ = resident_bytes()
        found["children"] = len(read_text(f"/proc/self/task/{os.getpid()}/children").split())
    return found


MOST_DESCRIPTORS = 2000


def _shared_memory(names: list[str]) -> int:
    """The number of descriptors of shared memory: each tensor that came from a worker keeps one."""
    if len(names) > MOST_DESCRIPTORS:
        return 0
    return sum(descriptor_target(name).startswith(("/dev/shm/", "/memfd:")) for name in names)


def containers(frame: FrameType | None) -> dict[str, tuple[int, int, int]]:
    """The containers that the user's frames can reach: length, bytes of one item, and flags (GRAPH, SHARED)."""
    found: dict[str, tuple[int, int, int]] = {}
    for one in itertools.islice(users_frames(frame), MOST_FRAMES):
        for name, value in list(one.f_locals.items()):
            _add(found, name, value, direct=True)
            _add_parts(found, name, value, DEEPEST)
    return found


def _add_parts(found: dict[str, tuple[int, int, int]], name: str, value: Any, deep: int) -> None:
    """Add the containers that an object of the program holds, and those of the objects in it."""
    own = getattr(value, "__dict__", None)
    if not isinstance(own, dict) or isinstance(value, (type, ModuleType)) or not is_users(module_file(type(value))):
        return
    for inner, part in list(own.items())[:30]:
        _add(found, f"{name}.{inner}", part, direct=False)
        if deep > 1:
            _add_parts(found, f"{name}.{inner}", part, deep - 1)


def _add(found: dict[str, tuple[int, int, int]], path: str, value: Any, *, direct: bool) -> None:
    if len(found) >= MOST_NAMES or path.startswith("__"):
        return
    if isinstance(value, _CONTAINERS) and value:
        item = next((one for one in _some(value) if _has_graph(one)), None)
        flags = GRAPH * (item is not None) + SHARED * _is_shared(_last(value))
        found[path] = (len(value), _bytes(item if item is not None else _last(value)), flags)
    elif not direct and _has_graph(value):
        found[path] = (1, _bytes(value), GRAPH)


def _some(container: Any) -> list[Any]:
    """The last item and a few of the others."""
    items = container.values() if isinstance(container, dict) else container
    step = max(1, len(container) // EXAMINED)
    return [_last(container), *itertools.islice(items, 0, None, step)][: EXAMINED + 1]


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


def _is_shared(item: Any) -> bool:
    """Whether an item is a tensor in shared memory, which keeps a descriptor open as long as it lives."""
    tensor = _tensor(item)
    return tensor is not None and not tensor.is_cuda and tensor.is_shared()


def retained(item: Any) -> tuple[int, bool]:
    """The approximate number of bytes that an item keeps alive, and whether it keeps a traceback."""
    waiting, seen, total, traced = [item], set[int](), 0, False
    while waiting and len(seen) < MOST_OBJECTS:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(one))
        with contextlib.suppress(Exception):  # code of the user's objects may run
            inner, size = _inside(one)
            total += size
            traced = traced or isinstance(one, TracebackType)
            waiting += inner
    return total, traced


def _inside(one: Any) -> tuple[list[Any], int]:
    """What an object holds, and its own bytes."""
    if hasattr(one, "untyped_storage"):
        return [], int(one.untyped_storage().nbytes())
    if hasattr(one, "__array_interface__"):
        return ([one.base], 0) if one.base is not None else ([], int(one.nbytes))
    if isinstance(one, TracebackType):
        return [*one.tb_frame.f_locals.values(), one.tb_next], 0
    if isinstance(one, BaseException):
        return [one.__traceback__, one.__cause__, one.__context__, *one.args], 0
    if isinstance(one, dict):
        return list(one.values())[:MOST_ITEMS], sys.getsizeof(one)
    if isinstance(one, (list, tuple, set, frozenset, deque)):
        return list(itertools.islice(one, MOST_ITEMS)), sys.getsizeof(one)
    own = getattr(one, "__dict__", None)
    return ([own] if isinstance(own, dict) else []), sys.getsizeof(one)


def added_items(before: dict[str, int], found: Iterable[tuple[str, Any]]) -> dict[str, tuple[int, int, bool]]:
    """For each container that has grown: the number of new items, and `retained` for one of them."""
    return {
        path: (len(one) - before[path], *retained(_last(one)))
        for path, one in found
        if isinstance(one, _CONTAINERS) and len(one) > before.get(path, len(one))
    }


def _bytes(item: Any) -> int:
    return retained(item)[0]
