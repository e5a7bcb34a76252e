"""Walks through whatever a collate function returns: applies a function to tensors, finds tensors."""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

# nothing of a batch is in these
_CLOSED = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.FunctionType, range)


def apply(data: Any, tensor: Callable[[torch.Tensor], Any], other: Callable[[Any], Any]) -> Any:
    """Return a copy of a structure with `tensor` applied to each tensor, and `other` to objects of tensors with `.to()`.

    Everything else stays the same object. Types of containers are kept.
    """
    if isinstance(data, torch.Tensor):
        return tensor(data)
    if isinstance(data, _CLOSED):
        return data
    if callable(getattr(data, "to", None)) and next(tensors(data), None) is not None:
        return other(data)
    if isinstance(data, Mapping):
        return _mapping(data, {key: apply(value, tensor, other) for key, value in data.items()})
    if isinstance(data, tuple):
        parts = [apply(value, tensor, other) for value in data]
        return type(data)(*parts) if hasattr(data, "_fields") else _sequence(data, parts)
    if isinstance(data, Sequence):
        return _sequence(data, [apply(value, tensor, other) for value in data])
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        made = copy.copy(data)
        for field in dataclasses.fields(data):
            object.__setattr__(made, field.name, apply(getattr(data, field.name), tensor, other))
        return made
    return data


def _mapping(data: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    if type(data) is dict:
        return parts
    try:
        if isinstance(data, (dict, collections.UserDict)):
            made = copy.copy(
                data
            )  # it may have attributes of its own; other mappings may share what they hold with a copy
            made.update(parts)
            return made
        return type(data)(parts)  # type: ignore[call-arg] # most mappings accept one
    except TypeError:
        return parts


def _sequence(data: Sequence[Any], parts: list[Any]) -> Any:
    if all(one is two for one, two in zip(data, parts, strict=True)):
        return data  # no tensor in it: ranges, arrays
    if type(data) is list:
        return parts
    try:
        return type(data)(parts)  # type: ignore[call-arg] # most sequences accept one
    except TypeError:
        return parts


def tensors(data: Any) -> Iterator[torch.Tensor]:
    """Find the tensors of a structure, also in attributes of objects; each once."""
    seen: dict[int, Any] = {}  # objects that are kept cannot have the same number as others
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _CLOSED):
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Tensor):
            yield one
            continue
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, (Sequence, set, frozenset)):
            waiting += one
        if type(one) not in (dict, list, tuple):
            waiting += getattr(one, "__dict__", {}).values()
            waiting += [getattr(one, name, None) for kind in type(one).__mro__ for name in _slots(kind)]


def _slots(kind: type) -> Sequence[str]:
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)
