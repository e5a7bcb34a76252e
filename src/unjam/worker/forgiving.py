"""A second chance for a sample that fails because something only stands for a list.

The dry run sees some samples; code in C that wants a real list or dict may lie on a path that none of them takes. So where a sample of a worker with
standing containers ends in an error that this could cause, real ones are put in their place and the sample is loaded again.
If it comes, they stay; if it does not, it was not their fault, and they go.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from unjam.sharing.private import Standing
from unjam.sharing.remembered import journals, news
from unjam.sharing.walking import Slot, slots

SUSPICIOUS = (TypeError, AttributeError, AssertionError)
# failures of a worker that are looked at this way: a dataset whose every other sample fails is not loaded twice
MOST_TRIES = 3
_tries = 0
_FAILED = object()


def standing_slots(dataset: Any) -> list[tuple[Slot, Standing]]:
    """Where something stands for a container."""
    return [
        (slot, slot.value)
        for slot in list(slots(dataset, "dataset"))
        if slot.holder is not None and issubclass(type(slot.value), Standing)
    ]


def forgiving(dataset: Any) -> Any:
    """The dataset for a fetcher; itself where nothing stands for anything."""
    if not journals:
        return dataset
    bulk = callable(getattr(dataset, "__getitems__", None))
    if bulk:
        return _Bulk(dataset)
    return _Single(dataset)


def forgiving_collate(dataset: Any, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same for a function that makes a batch of samples, and may look at the dataset."""
    if not journals:
        return collate

    def collate_again(samples: Any) -> Any:
        return _load(dataset, lambda: collate(samples))

    return collate_again


class _Single(Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        return _load(self._dataset, lambda: self._dataset[index])


class _Bulk(_Single):
    def __getitems__(self, indices: Any) -> Any:
        return _load(self._dataset, lambda: self._dataset.__getitems__(indices))


def _load(dataset: Any, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except SUSPICIOUS as error:
        places = standing_slots(dataset) if _worth_it() else []
        loaded = _with_real(places, load, error) if places else _FAILED
        if loaded is _FAILED:
            raise
        return loaded


def _worth_it() -> bool:
    global _tries  # noqa: PLW0603 - of this process
    _tries += 1
    return _tries <= MOST_TRIES


def _with_real(places: list[tuple[Slot, Standing]], load: Callable[[], Any], error: Exception) -> Any:
    real: dict[int, Any] = {}
    for slot, standing in places:
        if id(standing) not in real:
            real[id(standing)] = standing.real()
        slot.put(real[id(standing)])
    draws = _Draws()
    try:
        loaded = load()
    except Exception:  # noqa: BLE001 - whatever it is, the first error is the one to tell
        for slot, standing in places:
            slot.put(standing)
        draws.put_back()  # the next sample draws what it would have drawn
        return _FAILED
    for _, standing in places:
        if not standing.journal.written:
            standing.journal.written = reason = f"the dataset's code needs a real one ({type(error).__name__}: {error})"
            news.append((standing.path, reason))
        standing.become(real[id(standing)])
    return loaded


class _Draws:
    """Where the random numbers are at this moment."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy = None if numpy is None else numpy.random.get_state()

    def put_back(self) -> None:
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
