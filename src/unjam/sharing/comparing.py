"""Plain values and what was written of them."""

from __future__ import annotations

import itertools
import marshal
from collections.abc import Callable, Iterable
from typing import Any

from unjam.sharing.columns import PLAINLY
from unjam.sharing.exact import exactly

STRIDE = 2048


def hold(
    parts: tuple[Any, memoryview, memoryview], items: Iterable[Any], rows: Callable[[list[Any]], list[Any] | None]
) -> bool:
    """Compare many at a time: what marshal writes of a list is what it writes of its items, one after the other."""
    data, starts, ends = parts
    source, at = iter(items), 0
    while chunk := list(itertools.islice(source, STRIDE)):
        values = rows(chunk)
        if values is None or at + len(chunk) > len(starts):
            return False
        try:
            written = marshal.dumps(values, PLAINLY)
        except ValueError:  # something that is not plain was put into one
            return False
        if memoryview(written)[5:] != data[starts[at] : ends[at + len(chunk) - 1]]:
            return False
        at += len(chunk)
    return at == len(starts)


def same(value: Any, written: bytes) -> bool:
    """Whether a value is exactly what was written."""
    try:
        if marshal.dumps(value, PLAINLY) == written:
            return True
        return exactly(value, marshal.loads(written))  # noqa: S302 - what marshal writes in two ways
    except ValueError:  # something that is not plain was put into it
        return False
