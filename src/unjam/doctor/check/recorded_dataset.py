"""Stand-ins for a dataset or its iterator inside a fetcher: each sample is loaded through a function that records it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

Record = Callable[[Any, Callable[[], Any]], Any]  # gets the name of a sample and what loads it; returns the sample


def batch_name(indices: Any) -> str:
    """The name of a batch that is loaded by one call: its first indices."""
    return ",".join(str(index) for index in list(indices)[:8])


class RecordedDataset:
    """Stands in for a map-style dataset."""

    def __init__(self, dataset: Any, record: Record) -> None:
        self._dataset, self._record = dataset, record

    def __getitem__(self, index: Any) -> Any:
        return self._record(index, functools.partial(self._dataset.__getitem__, index))


class RecordedBatches(RecordedDataset):
    """Stands in for a map-style dataset that loads whole batches."""

    def __getitems__(self, indices: Any) -> Any:
        return self._record(batch_name(indices), functools.partial(self._dataset.__getitems__, indices))


class RecordedStream:
    """Stands in for the iterator of an iterable dataset. Samples are named by their position."""

    def __init__(self, samples: Iterator[Any], record: Record) -> None:
        self._samples, self._record, self._position = samples, record, 0

    def __iter__(self) -> RecordedStream:
        return self

    def __next__(self) -> Any:
        sample = self._record(f"#{self._position}", functools.partial(next, self._samples))
        self._position += 1
        return sample
