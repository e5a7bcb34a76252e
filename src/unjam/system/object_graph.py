"""What an object holds: the items of a container, the attributes of an object, the variables of a function.

Every search through a dataset is made of these. Nothing here calls code of the object's own class: a
dict is read as a dict, and attributes come from `__dict__` and slots.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Held(NamedTuple):
    """One thing that an object holds.

    path: the text that leads to it, such as ".name" or "[3]". holder, name: the object, and the
    attribute, key or index there. put: stores another value in its place; None where the holder
    cannot be changed.
    """

    path: str
    value: Any
    holder: Any = None
    name: Any = None
    put: Callable[[Any], None] | None = None


def items(container: Any, most: int | None = None) -> Iterator[Held]:
    """The first `most` items of a dict, list, deque, tuple or set; nothing for other objects."""
    if isinstance(container, dict):
        for key, value in list(itertools.islice(dict.items(container), most)):
            yield Held(f"[{key!r}]", value, container, key, functools.partial(container.__setitem__, key))
    elif isinstance(container, (list, deque)):
        kind: Any = list if isinstance(container, list) else deque
        for place, value in enumerate(itertools.islice(kind.__iter__(container), most)):
            yield Held(f"[{place}]", value, container, place, functools.partial(container.__setitem__, place))
    elif isinstance(container, tuple):
        names = getattr(type(container), "_fields", None)
        for place, value in enumerate(itertools.islice(tuple.__iter__(container), most)):
            yield Held(f".{names[place]}" if names else f"[{place}]", value, container, place)
    elif isinstance(container, (set, frozenset)):
        for value in list(itertools.islice(container, most)):
            yield Held("{…}", value, container)


def attributes(obj: Any, most: int | None = None, *, slots: bool = True) -> Iterator[Held]:
    """The attributes that an object itself has, from its `__dict__` and its slots."""
    try:
        known = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        known = None
    if isinstance(known, dict):
        for name, value in list(itertools.islice(known.items(), most)):
            yield Held(f".{name}", value, obj, name, functools.partial(known.__setitem__, name))
    for kind in type(obj).__mro__ if slots else ():
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if isinstance(name, str) and name not in ("__dict__", "__weakref__"):
                is_private = name.startswith("__") and not name.endswith("__")
                try:
                    value = getattr(obj, f"_{kind.__name__.lstrip('_')}{name}" if is_private else name)
                except Exception:  # noqa: BLE001, S112 - an empty slot
                    continue
                yield Held(f".{name}", value, obj, name, functools.partial(setattr, obj, name))


def wrapped(obj: Any) -> Iterator[Held]:
    """What a partial or a bound method calls, and with what."""
    if isinstance(obj, functools.partial):
        yield Held(".func", obj.func, obj, "func")
        for name, held in ((".args", obj.args), (".keywords", obj.keywords)):
            yield from (part._replace(path=name + part.path) for part in items(held))
    elif isinstance(obj, types.MethodType):
        yield Held(".__self__", obj.__self__, obj, "__self__")


def enclosed(function: types.FunctionType) -> Iterator[Held]:
    """The variables that a function keeps from the function around it; `path` is the name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            value = cell.cell_contents
        except ValueError:
            continue  # not set yet
        yield Held(name, value, function, name, functools.partial(setattr, cell, "cell_contents"))


def walk(
    root: Held, parts_of: Callable[[Held], Iterator[Held]], *, deepest: int, most: int
) -> Iterator[tuple[Held, bool]]:
    """Everything below an object, nearest first, each with its whole path; True the first time it is met.

    `parts_of` says what to look at below a part. Each object is searched once.
    """
    seen = {id(root.value)}
    waiting: deque[tuple[Held, int]] = deque([(root, 0)])
    while waiting:
        above, depth = waiting.popleft()
        for part in parts_of(above):
            fresh = id(part.value) not in seen
            yield part, fresh
            if fresh and depth < deepest and len(seen) <= most:
                seen.add(id(part.value))
                waiting.append((part, depth + 1))
