"""The names that stored files refer to. They belong to the file format: never move this module."""

from __future__ import annotations

from typing import Any


def known_object(number: int) -> Any:
    """Stand for entry `number` of the classes and functions that are stored beside a column.

    It is never called: when a reader unpickles this name, it looks the number up in its own table.
    """
    raise NotImplementedError(number)


def tensor_from(array: Any) -> Any:
    """A tensor over the array's memory; a read-only array is copied first."""
    import torch  # noqa: PLC0415 - only where a tensor was stored

    return torch.from_numpy(array if array.flags.writeable else array.copy())
