"""Finds and replaces the tensors in whatever a collate function returns."""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unjam.system.object_graph import attributes

# values that hold no part of a batch
_LEAVES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.FunctionType, range)


def apply(data: Any, tensor: Callable[[torch.Tensor], Any], other: Callable[[Any], Any]) -> Any:
    """Return a copy of a structure with `tensor` applied to each tensor.

    `other` is applied to objects that hold tensors and have a `.to()` method. Everything else stays the same object.
    Containers keep their types.
    """
    if isinstance(data, torch.Tensor):
        return tensor(data)
    if isinstance(data, _LEAVES):
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


def _mapping(data: Any, parts: dict[Any, Any]) -> Any:
    if type(data) is dict:
        return parts
    try:
        if isinstance(data, (dict, collections.UserDict)):
            # A copy keeps additional attributes. Copies of other mappings may share their items with the original.
            made = copy.copy(data)
            made.update(parts)
            return made
        return type(data)(parts)  # most mappings accept one
    except TypeError:
        return parts


def _sequence(data: Any, parts: list[Any]) -> Any:
    if all(one is two for one, two in zip(data, parts, strict=True)):
        return data  # it holds no tensor
    if type(data) is list:
        return parts
    try:
        return type(data)(parts)  # most sequences accept one
    except TypeError:
        return parts


def tensors(data: Any) -> Iterator[torch.Tensor]:
    """Yield each tensor in a structure once, also those in attributes of objects."""
    seen: dict[int, Any] = {}  # by id; keeping the objects alive keeps each id unique
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _LEAVES):
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
            waiting += [part.value for part in attributes(one)]
