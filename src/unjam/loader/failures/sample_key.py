"""Finds the dataset's own name for a sample: a path or an id.

We assume no attribute names. If the dataset holds a list as long as itself, with a path or a
string at the sample's index, that is the name. We look inside `Subset`, `ConcatDataset` and
similar classes.
"""

from __future__ import annotations

import bisect
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 6


def key_of(dataset: Any, index: Any, depth: int = 0) -> str | None:
    """Return the sample's name and where it is (`'img/37.jpg' (samples[37])`), or None."""
    try:
        return _key_of(dataset, index, depth)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - only a hint; user objects may raise anything, even SystemExit
        return None


def _key_of(dataset: Any, index: Any, depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return None
    index = operator.index(index)
    attributes = vars(dataset)
    inner, indices = attributes.get("dataset"), attributes.get("indices")
    if inner is not None and indices is not None:
        return key_of(inner, indices[index], depth + 1) if len(indices) == len(dataset) else None
    parts, ends = attributes.get("datasets"), attributes.get("cumulative_sizes")
    if isinstance(parts, Sequence) and ends:
        which = bisect.bisect_right(ends, index)
        return key_of(parts[which], index - (ends[which - 1] if which else 0), depth + 1)
    size = len(dataset)
    for name, held in attributes.items():
        if isinstance(held, (list, tuple)) and len(held) == size:
            word = _word(held[index])
            if word is not None:
                return f"{word!r} ({name}[{index}])"
    # Another wrapper may renumber its samples: a missing name is better than a wrong one.
    return None


def _word(item: Any) -> str | None:
    if isinstance(item, (str, os.PathLike)):
        return os.fspath(item)
    if isinstance(item, (tuple, list)) and item:
        return _word(item[0]) if isinstance(item[0], (str, os.PathLike)) else None
    if isinstance(item, Mapping):
        # For a record, take the first short string or path among its values.
        names = (os.fspath(value) for value in item.values() if isinstance(value, (str, os.PathLike)))
        return next((name for name in names if len(name) < 200), None)
    return None
