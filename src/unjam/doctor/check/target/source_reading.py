"""Reads the source code around a captured loader: the code that loads, and the loop that consumes."""

from __future__ import annotations

import ast
import dis
import types
from collections.abc import Iterator
from types import FrameType
from typing import Any

from unjam.doctor.check.inventory import names_in, walk
from unjam.doctor.facts import source
from unjam.doctor.facts.case import SourceReading
from unjam.doctor.facts.trial import Place
from unjam.system.file_owner import is_users

MOST_FUNCTIONS = 400


def loading_functions(roots: dict[str, Any]) -> list[types.FunctionType]:
    """The user's functions that loading may run.

    These are the methods of the objects in the dataset, and the functions and classes whose global
    names they use.
    """
    found: dict[types.CodeType, types.FunctionType] = {}
    waiting = [one.value for one in walk({name: root for name, root in roots.items() if name != "sampler"})]
    while waiting and len(found) < MOST_FUNCTIONS:
        obj = waiting.pop()
        for function in _functions_of(obj):
            code = function.__code__
            if code in found or not is_users(code.co_filename):
                continue
            found[code] = function
            for name in names_in(code):
                called = function.__globals__.get(name)
                if isinstance(called, (types.FunctionType, type)):
                    waiting.append(called)
    return list(found.values())


def _functions_of(obj: Any) -> Iterator[types.FunctionType]:
    if isinstance(obj, types.FunctionType):
        yield obj
    elif isinstance(obj, types.MethodType):
        if isinstance(obj.__func__, types.FunctionType):
            yield obj.__func__
    else:
        kind = obj if isinstance(obj, type) else type(obj)
        for base in kind.__mro__:
            for name, value in list(vars(base).items()):
                function = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(function, types.FunctionType) and name != "__init__":
                    yield function


_HidingHandler = tuple[str, int, int, int, str, str]


def hiding_handlers(functions: list[types.FunctionType]) -> list[_HidingHandler]:
    """The handlers that hide failures.

    Each is (file, first line of the try, last line of the try, line of the handler, what it
    catches, what it does).
    """
    found = []
    for function in functions:
        for place, (first, last), caught, done in source.swallowing(function):
            found.append((place.file, first, last, place.line, caught, done))
    return sorted(set(found))


def read(loader: Any, calls: list[FrameType], handlers: list[_HidingHandler]) -> SourceReading:
    """Facts about one loader from the source code. calls: the frames at its iter(), innermost first."""
    frames = [one for one in calls if is_users(one.f_code.co_filename)]
    excepts = tuple((Place(file, at), caught, done) for file, _, _, at, caught, done in handlers)
    files = {frame.f_code.co_filename for frame in frames}
    names = {name for frame in frames for name in _names_of(loader.dataset, frame)}
    names |= {f"{name}.dataset" for frame in frames for name in _names_of(loader, frame)}
    reads: dict[str, Place] = {}
    writes: dict[str, Place] = {}
    for file in files:
        read_here, written = source.uses_of(file, names)
        reads |= read_here
        writes |= written
    writes |= _set_by_methods(loader.dataset, reads)
    reads = {**_read_by_methods(loader.dataset, reads), **reads}
    here = Place(frames[0].f_code.co_filename, frames[0].f_lineno) if frames else None
    again = any(source.is_in_loop(frame.f_code.co_filename, frame.f_lineno) for frame in frames)
    return SourceReading(
        excepts=excepts,
        guarded=_guarded(frames),
        in_loop=again,
        epochs=next((number for frame in frames if (number := _rounds(frame)) is not None), None),
        iterated_once=bool(calls) and not any(source.is_in_loop(one.f_code.co_filename, one.f_lineno) for one in calls),
        remade_at=here if here and again and source.remade(here) else None,
        kept_batches=source.kept(here) if here else None,
        cycled_at=next(
            (at for one in frames for at in source.cycles(one.f_code.co_filename, _names_of(loader, one))), None
        ),
        set_epoch=any(source.calls(file, "set_epoch") for file in files),
        reads=reads,
        writes=writes,
    )


def _rounds(frame: FrameType) -> int | None:
    """The number of iterations of the loop around a call.

    Known if the source has a number there, or a variable or attribute that is now an int.
    """
    wanted = source.rounds(frame.f_code.co_filename, frame.f_lineno)
    if isinstance(wanted, ast.Constant):
        return wanted.value if isinstance(wanted.value, int) else None
    names = ast.unparse(wanted).split(".") if isinstance(wanted, (ast.Name, ast.Attribute)) else []
    value = {**frame.f_globals, **frame.f_locals}.get(names[0]) if names else None
    for name in names[1:]:
        value = getattr(value, "__dict__", {}).get(name)
    return value if isinstance(value, int) else None


def _names_of(obj: Any, frame: FrameType) -> list[str]:
    found = [name for name, value in {**frame.f_globals, **frame.f_locals}.items() if value is obj]
    this = frame.f_locals.get("self")
    found += [f"self.{name}" for name, value in getattr(this, "__dict__", {}).items() if value is obj]
    return found


def _guarded(frames: list[FrameType]) -> bool:
    for frame in reversed(frames):
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return source.is_guarded(frame.f_code.co_filename, frame.f_lineno)
    return True


def _read_by_methods(dataset: Any, called: dict[str, Place]) -> dict[str, Place]:
    """Attributes that are read by the methods of the dataset that the program calls."""
    found: dict[str, Place] = {}
    for name, place in called.items():
        function = getattr(type(dataset), name, None)
        if isinstance(function, types.FunctionType) and is_users(function.__code__.co_filename):
            own = getattr(dataset, "__dict__", {})
            found |= {used: place for used in _attributes_read(function.__code__) if used in own}
    return found


def _attributes_read(code: types.CodeType) -> set[str]:
    """The attributes that a function reads but does not set."""
    known = [(one.opname, str(one.argval)) for one in dis.get_instructions(code)]
    return {name for do, name in known if do in ("LOAD_ATTR", "LOAD_METHOD")} - {
        name for do, name in known if do == "STORE_ATTR"
    }


def _set_by_methods(dataset: Any, called: dict[str, Place]) -> dict[str, Place]:
    """Attributes that are set by the methods of the dataset that the program calls in a loop."""
    found: dict[str, Place] = {}
    for name, place in called.items():
        function = getattr(type(dataset), name, None)
        if not isinstance(function, types.FunctionType) or not source.is_in_loop(place.file, place.line):
            continue
        for node in source.nodes(function.__code__.co_filename, ast.FunctionDef):
            if node.name == name:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        found.setdefault(inner.attr, place)
    return found
