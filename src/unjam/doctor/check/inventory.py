"""What a dataset holds: locks, open handles, generators, threads, queues, arrays, crowds of Python objects.

Found by walking from the dataset, the collate function and the rest through attributes, containers, closures and the
globals that their code names, and by asking each object what it can do, never what it is called.
"""

from __future__ import annotations

import ctypes
import functools
import os
import stat
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unjam.doctor.check.randomness import is_generator
from unjam.doctor.facts.case import Part
from unjam.doctor.facts.source import where_set
from unjam.shared.plain import is_plain
from unjam.system.file_owner import is_users

DEEPEST = 7
MOST_OBJECTS = 20_000
LOOKED_AT = 24  # items of one container
CROWD = 20_000  # a container with this many Python objects is worth a word
LARGE_ARRAY = 1 << 20
NUMBER_NAMES = ("fd", "fileno", "desc", "handle", "file")
_PLAIN = (str, bytes, int, float, bool, complex, type(None), types.ModuleType, type, types.CodeType, range, slice)


@dataclass(frozen=True, slots=True)
class Found:
    """An object on the way, and how to put another in its place."""

    path: str
    obj: Any
    owner: Any
    name: Any
    replace: Callable[[Any], None]


def walk(roots: Mapping[str, Any]) -> Iterator[Found]:
    """Every object that can be reached, each once, nearest first."""
    seen: set[int] = set()
    waiting: deque[tuple[int, Found]] = deque()
    for name, root in roots.items():
        if root is not None:
            waiting.append((0, Found(name, root, None, name, lambda _: None)))
    while waiting and len(seen) < MOST_OBJECTS:
        depth, found = waiting.popleft()
        obj = found.obj
        if id(obj) in seen or isinstance(obj, _PLAIN):
            continue
        seen.add(id(obj))
        yield found
        if depth < DEEPEST and not _is_torchs(obj):
            waiting.extend((depth + 1, part) for part in _parts(found))


def _is_torchs(obj: Any) -> bool:
    return hasattr(obj, "untyped_storage") or type(obj).__module__.startswith(("torch.nn", "torch._C"))


def _parts(found: Found) -> Iterator[Found]:
    obj, path = found.obj, found.path
    if isinstance(obj, dict):
        for key in _some(obj):
            yield Found(f"{path}[{key!r}]"[:200], obj[key], obj, key, functools.partial(obj.__setitem__, key))
    elif isinstance(obj, list):
        for place in _some(range(len(obj))):
            yield Found(f"{path}[{place}]", obj[place], obj, place, functools.partial(obj.__setitem__, place))
    elif isinstance(obj, (tuple, deque)):
        for place, value in zip(range(LOOKED_AT), obj, strict=False):
            yield Found(f"{path}[{place}]", value, obj, place, lambda _: None)
    if isinstance(obj, functools.partial):
        yield Found(f"{path}.func", obj.func, obj, "func", lambda _: None)
        yield from _parts(Found(f"{path}.args", obj.args, obj, "args", lambda _: None))
        yield from _parts(Found(f"{path}.keywords", obj.keywords, obj, "keywords", lambda _: None))
    elif isinstance(obj, types.MethodType):
        yield Found(path.rpartition(".")[0] or path, obj.__self__, None, "", lambda _: None)
        if isinstance(obj.__func__, types.FunctionType):
            yield from _function_parts(obj.__func__)
    elif isinstance(obj, types.FunctionType):
        yield from _function_parts(obj)
    elif not isinstance(obj, (dict, list, tuple)):
        yield from _attributes(obj, path)
        yield from _class_parts(type(obj), path)


def _some(items: Any) -> list[Any]:
    return [item for _, item in zip(range(LOOKED_AT), items, strict=False)]


def _attributes(obj: Any, path: str) -> Iterator[Found]:
    state = getattr(obj, "__dict__", None)
    if isinstance(state, dict):
        for name, value in list(state.items())[:200]:
            yield Found(f"{path}.{name}", value, obj, name, functools.partial(state.__setitem__, name))
    for kind in type(obj).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(name, str) and not name.startswith("__"):
                try:
                    value = getattr(obj, name)
                except Exception:  # noqa: BLE001, S112 - an empty slot
                    continue
                yield Found(f"{path}.{name}", value, obj, name, functools.partial(setattr, obj, name))


def _class_parts(kind: type, path: str) -> Iterator[Found]:
    """Attributes of the user's own classes, and the globals that their methods name."""
    for base in kind.__mro__:
        module = sys.modules.get(base.__module__)
        if base is object or not is_users(getattr(module, "__file__", None) or "<ipynb>"):
            continue
        for name, value in list(vars(base).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, types.FunctionType):
                yield from _function_parts(function)
            elif not name.startswith("__") and not callable(value):
                yield Found(f"{path}.{name}", value, base, name, functools.partial(setattr, base, name))


def _function_parts(function: types.FunctionType) -> Iterator[Found]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield Found(name, value, function, name, functools.partial(setattr, cell, "cell_contents"))
    if is_users(function.__code__.co_filename):
        space = function.__globals__
        for name in names_in(function.__code__):
            if name in space:
                yield Found(name, space[name], space, name, functools.partial(space.__setitem__, name))
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield Found(getattr(wrapped, "__name__", "wrapped"), wrapped, function, "__wrapped__", lambda _: None)


def names_in(code: types.CodeType) -> Iterator[str]:
    """Every name that a function's code looks up, nested functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def sizes(roots: Mapping[str, Any]) -> dict[str, int]:
    """The lengths of the containers that can be reached: what grows while samples are loaded shows here."""
    return {
        found.path: len(found.obj)
        for found in walk(roots)
        if isinstance(found.obj, (list, dict, set, deque, bytearray))
    }


# -- what an object is, by what it can do ------------------------------------------------------------------------------


def kind_of(obj: Any) -> str:
    """The kind of part an object is, or nothing."""
    try:
        if isinstance(obj, (list, dict, set, frozenset, tuple)):
            return "objects" if len(obj) >= CROWD and _crowded(obj) else ""
        if is_generator(obj):
            return "generator"
        if isinstance(obj, threading.Thread):
            return "thread"
        if can(obj, "acquire", "release"):
            return "lock"
        if can(obj, "submit", "shutdown"):
            return "executor"
        if can(obj, "run_forever", "is_running"):
            return "loop"
        if can(obj, "get", "put", "empty"):
            return "queue"
        if descriptor(obj) is not None:
            return "handle"
        if hasattr(type(obj), "nbytes") and hasattr(type(obj), "dtype"):
            if str(obj.dtype) == "object" and obj.size >= CROWD:
                return "objects"
            return "array" if int(obj.nbytes) >= LARGE_ARRAY else ""
    except Exception:  # noqa: BLE001 - an object that cannot be asked is no part
        return ""
    return ""


def can(obj: Any, *methods: str) -> bool:
    """Whether an object's class has methods of these names.

    The class is asked, never the object: one that makes up attributes on demand (a C library, a remote proxy) has them all.
    """
    kind, own = type(obj), getattr(type(obj), "__dictoffset__", 0) and vars(obj)
    if isinstance(obj, (type, ctypes.CDLL)):
        return False
    return all(callable(getattr(kind, name, None)) or (own and callable(own.get(name))) for name in methods)


def _crowded(container: Any) -> bool:
    values = list(container.values())[:8] if isinstance(container, dict) else _some(container)[:8]
    return any(not isinstance(value, (bool, type(None))) for value in values)


def descriptor(obj: Any) -> int | None:
    """The descriptor behind an object that has one."""
    if not can(obj, "fileno"):
        return None
    try:
        fd = obj.fileno()
    except Exception:  # noqa: BLE001 - closed, detached, or in memory
        return None
    return fd if isinstance(fd, int) and fd > 2 else None


def weight(container: Any) -> int:
    """About how many bytes of Python objects a container keeps alive, from a few of them."""
    if hasattr(container, "dtype"):
        return int(container.size) * 64
    values = list(zip(range(200), container.items() if isinstance(container, dict) else container, strict=False))
    each = sum(_deep_size(value) for _, value in values) / max(1, len(values))
    return int(sys.getsizeof(container) + each * len(container))


def _deep_size(obj: Any, depth: int = 0) -> int:
    size = sys.getsizeof(obj, 64)
    if depth < 3 and isinstance(obj, (list, tuple, set)):
        size += sum(_deep_size(one, depth + 1) for one in _some(obj))
    elif depth < 3 and isinstance(obj, dict):
        size += sum(
            _deep_size(k, depth + 1) + _deep_size(v, depth + 1)
            for k, v in zip(_some(obj), _some(obj.values()), strict=False)
        )
    return size


def left_alone(container: Any) -> str:
    """Why workers of unjam's own would copy it as they read it, as far as its first items tell; nothing: they would not."""
    if type(container) not in (list, tuple, dict):
        return f"it is a {type(container).__qualname__}, not exactly a list, tuple or dict"
    sample = list(zip(range(200), container.items() if isinstance(container, dict) else container, strict=False))
    odd = is_plain([item for _, item in sample])
    return f"its items hold a {odd}" if odd else ""


# -- the inventory -----------------------------------------------------------------------------------------------------


class Inventory:
    """The parts of one loader, with the objects themselves."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.found: dict[str, Found] = {}
        self.names: dict[int, str] = {}
        self._holders: dict[str, Found] = {}
        self._numbers: dict[str, tuple[Found, int]] = {}
        opened = open_files()
        for found in walk(roots):
            self._find_numbers(found, opened)
            kind = kind_of(found.obj)
            shown = self._shown(found.path)
            self.names.setdefault(id(found.obj), shown)
            if kind and shown in self.found and kind_of(self.found[shown].obj) != kind:
                self.found[found.path] = found  # a pipe and a lock inside one object of Python's own
            elif kind:
                self.found.setdefault(shown, found)
            elif _is_pythons(found.obj) and not isinstance(
                found.obj, (list, dict, tuple, types.FunctionType, types.MethodType)
            ):
                self._holders[found.path] = found

    def _find_numbers(self, found: Found, opened: dict[int, str]) -> None:
        """Descriptors that are kept as plain numbers, under a name that says so."""
        for name, value in list(getattr(found.obj, "__dict__", {}).items())[:200] if opened else ():
            if type(value) is int and value in opened and any(hint in str(name).lower() for hint in NUMBER_NAMES):
                path = f"{found.path}.{name}"
                self._numbers[path] = (Found(path, value, found.obj, name, lambda _: None), value)

    def _shown(self, path: str) -> str:
        """The path up to an object of Python's own: a ZipFile's inner file is the ZipFile to the user."""
        for holder in self._holders:
            if path.startswith((f"{holder}.", f"{holder}[")):
                return holder
        return path

    def generators(self) -> dict[str, Any]:
        """The generators by path."""
        return {path: found.obj for path, found in self.found.items() if kind_of(found.obj) == "generator"}

    def parts(self) -> tuple[Part, ...]:
        """As facts."""
        numbers = [
            Part(path, "handle", "int", where_set(found.owner, found.name), {"fd": fd, "target": _target(fd)})
            for path, (found, fd) in self._numbers.items()
        ]
        return (*(_part(path, found, self._holders.get(path, found)) for path, found in self.found.items()), *numbers)


def _is_pythons(obj: Any) -> bool:
    return type(obj).__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}


def _part(path: str, found: Found, shown: Found) -> Part:
    obj, kind = found.obj, kind_of(found.obj)
    type_name = f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
    facts: dict[str, Any] = {}
    if kind == "handle":
        fd = descriptor(obj)
        facts = {
            "fd": fd,
            "target": _target(fd),
            "mode": str(getattr(obj, "mode", "")),
            "name": str(getattr(obj, "name", "")),
        }
    elif kind == "lock":
        facts = lock_facts(obj)
    elif kind == "objects":
        facts = {"count": len(obj), "nbytes": weight(obj), "left_alone": left_alone(obj)}
    elif kind == "array":
        facts = {"nbytes": int(obj.nbytes), "mapped": type(obj).__name__ == "memmap"}
    elif kind == "queue":
        facts = {"between_processes": type(obj).__module__.startswith("multiprocessing")}
    elif kind == "thread":
        facts = {"alive": obj.is_alive()}
    place = where_set(shown.owner, shown.name)
    return Part(path, kind, type_name, place if place and is_users(place.file) else None, facts)


def lock_facts(lock: Any) -> dict[str, Any]:
    """Whether a lock is held, by whom as far as it says, and whether processes share it."""
    facts: dict[str, Any] = {}
    sem = getattr(lock, "_semlock", None)
    inner = getattr(lock, "_lock", None)
    if sem is None and inner is not None and hasattr(inner, "_semlock"):
        sem = inner._semlock  # noqa: SLF001 - a condition around a lock
    if sem is not None:
        facts = {"between_processes": True, "locked": sem._is_zero(), "mine": bool(sem._is_mine())}  # noqa: SLF001
    elif can(lock, "locked"):
        try:
            facts = {"locked": bool(lock.locked())}
        except Exception:  # noqa: BLE001 - somebody else's idea of a lock
            facts = {}
    value = getattr(lock, "__dict__", {}).get("_value")
    if isinstance(value, int):  # a semaphore of threading's
        facts["locked"] = value <= 0
    text = repr(lock)
    if "locked" not in facts and "owner=" in text:
        facts["locked"] = "unlocked" not in text
    if "owner=" in text and sem is None:
        facts["owner"] = text.partition("owner=")[2].split()[0].rstrip(">")
    facts.setdefault("between_processes", sem is not None)
    return facts


def _target(fd: int | None) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def open_files() -> dict[int, str]:
    """The regular files open in this process that data may come from."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target, fd = os.readlink(f"/proc/self/fd/{name}"), int(name)
            if fd <= 2 or not stat.S_ISREG(os.fstat(fd).st_mode) or target.startswith(("/memfd:", "/dev/shm/")):
                continue
            if not flags_of(fd) & (
                os.O_WRONLY | os.O_APPEND
            ):  # what is only written to, a log, shares its place on purpose
                found[fd] = target
        except (OSError, ValueError):
            continue
    return found


def flags_of(fd: int) -> int:
    """How a descriptor was opened."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
    return os.O_RDONLY
