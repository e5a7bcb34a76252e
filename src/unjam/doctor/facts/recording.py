"""Writes facts as JSON and reads them, so that an examination can be judged again without running the program.

A dataclass is an object with the fields that differ from their defaults; several of one type form a table: the names of
the fields, and a row for each. A place is "file:line". A mapping whose keys are not texts is a list of pairs. In a field of
type `Any`, a list is read as a tuple. Links between facts (`case.program`) are not written; reading restores them.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections import abc
from enum import Enum
from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.trial import Place

SCHEMA = 5
_LINKS = {"program", "watched_loader"}
FEWEST_ROWS = 4


def record(watched: ProgramFacts | None, cases: list[Case]) -> dict[str, Any]:
    """The facts of an examination, as values for JSON."""
    return {
        "schema": SCHEMA,
        "program": encode(watched) if watched is not None else None,
        "loaders": [
            {
                "of": [case.watched_loader.pid, case.watched_loader.number]
                if case.watched_loader is not None
                else None,
                **encode(case),
            }
            for case in cases
        ],
    }


def replay(recorded: dict[str, Any]) -> tuple[ProgramFacts | None, list[Case]]:
    """The facts of a recording."""
    if recorded.get("schema") != SCHEMA:
        raise ValueError(f"a recording of schema {recorded.get('schema')}, not {SCHEMA}")
    watched = decode(recorded["program"], ProgramFacts) if recorded["program"] is not None else None
    cases = []
    for stored in recorded["loaders"]:
        case = decode({name: value for name, value in stored.items() if name != "of"}, Case)
        case.program = watched
        if watched is not None and stored["of"] is not None:
            pid, number = stored["of"]
            case.watched_loader = next((one for one in watched.loaders if (one.pid, one.number) == (pid, number)), None)
        cases.append(case)
    return watched, cases


# -- writing -------------------------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """A fact as a value for JSON."""
    if isinstance(value, Place):
        return f"{value.file}:{value.line}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, (str, int, type(None))):
        return value
    if isinstance(value, abc.Mapping):
        pairs = [[encode(key), encode(one)] for key, one in value.items()]
        return dict(pairs) if all(isinstance(key, str) for key in value) else pairs
    if isinstance(value, (list, tuple)):
        return _encode_rows(value) if _are_alike(value) else [encode(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted((encode(one) for one in value), key=str)
    return str(value)


def _are_alike(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether there are enough facts of one type to write them as a table."""
    first = type(values[0]) if values else None
    is_fact = dataclasses.is_dataclass(first) and first is not Place
    return len(values) >= FEWEST_ROWS and is_fact and all(type(one) is first for one in values)


def _encode_rows(values: list[Any] | tuple[Any, ...]) -> dict[str, Any]:
    """Several facts of one type: the field names once, and a row for each fact."""
    rows = [_encode_fields(one) for one in values]
    names = list(dict.fromkeys(name for row in rows for name in row))
    # a field that another row has is written with its default
    absent = {name: encode(default) for name, _, default in _fields(values[0].__class__) if name in names}
    return {"fields": names, "rows": [[row.get(name, absent[name]) for name in names] for row in rows]}


def _encode_fields(value: Any) -> dict[str, Any]:
    known = {
        name: (getattr(value, name), default) for name, _, default in _fields(value.__class__) if name not in _LINKS
    }
    return {name: encode(one) for name, (one, default) in known.items() if one != default}


# -- reading -------------------------------------------------------------------------------------------------------------


def decode(stored: Any, hint: Any) -> Any:
    """The value of this type that JSON describes."""
    if hint is Any:
        return tuple(stored) if isinstance(stored, list) else stored
    if hint is Place:
        file, _, line = stored.rpartition(":")
        return Place(file, int(line))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = {name: one for name, one, _ in _fields(hint)}
        return hint(**{name: decode(one, hints[name]) for name, one in stored.items()})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if stored is None else decode(stored, next(one for one in arguments if one is not type(None)))
    if origin in (dict, abc.Mapping):
        pairs = stored.items() if isinstance(stored, dict) else stored
        return {decode(key, arguments[0]): decode(one, arguments[1]) for key, one in pairs}
    if isinstance(stored, dict) and origin in (tuple, list):
        stored = [dict(zip(stored["fields"], row, strict=True)) for row in stored["rows"]]
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(decode(one, arguments[0]) for one in stored)
        return tuple(decode(one, kind) for one, kind in zip(stored, arguments, strict=True))
    if origin is abc.Sequence:
        return [decode(one, arguments[0]) for one in stored]
    if origin in (list, set, frozenset):
        return origin(decode(one, arguments[0]) for one in stored)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(stored)
    return float(stored) if hint is float else stored


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any, Any], ...]:
    """Name, type and default of each field of a dataclass."""
    hints = typing.get_type_hints(kind)
    return tuple((one.name, hints[one.name], _default(one)) for one in dataclasses.fields(kind))


def _default(one: dataclasses.Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not dataclasses.MISSING else one.default
