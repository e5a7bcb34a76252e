"""A loader of the watched program at the start of an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unjam.doctor.facts.trial import Place


@dataclass(frozen=True, slots=True)
class LoaderDescription:
    """A loader, its dataset and its sampler, as small values to compare with other loaders and processes.

    dataset, base: the class of the dataset, and of the innermost dataset in its wrappers. home: the line of the dataset's class.
    subset: the base's index of each sample. draws: the sampler's length. random: the sampler draws random
    numbers. tokens: numbers that identify objects which two loaders may share. items, records: hashes of the items of each sequence with
    one item per sample. maps: tables from names to numbers. rows: attributes with one entry per sample.
    per_sample: arrays among these. plain: attributes with a single value. stale: concatenated
    parts whose length has changed since: path, then, now. composed: where a part was concatenated or divided. reads: attributes that
    the code of the dataset reads. unused: transforms that this code does not call, and the line that set each. files: source files
    of this code. thread: the thread that iterates it, unless it is the main thread.
    """

    kind: str = "DataLoader"
    dataset: str = "?"
    base: str = ""
    home: Place | None = None
    length: int | None = None
    base_length: int | None = None
    workers: int = 0
    batch_size: int | None = None
    batched: bool = False
    persistent: bool = False
    iterable: bool = False
    sampler: str = ""
    random: bool = False
    replacement: bool = False
    draws: int | None = None
    batch_sampler: str = ""
    sampler_file: str = ""
    weighted: bool = False
    weights: int | None = None
    has_generator: bool = False
    stateful: bool = True
    set_epoch: bool = False
    drop_last: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)
    subset: Sequence[Any] | None = None
    items: Mapping[str, Sequence[int]] = field(default_factory=dict)
    records: Mapping[str, Sequence[int]] = field(default_factory=dict)
    maps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rows: Sequence[str] = ()
    per_sample: Sequence[str] = ()
    proxies: Sequence[str] = ()
    plain: Sequence[str] = ()
    stale: Sequence[tuple[str, int, int]] = ()
    composed: Mapping[str, Place] = field(default_factory=dict)
    transforms: Mapping[str, str] = field(default_factory=dict)
    reads: Sequence[str] = ()
    generators: Sequence[int] = ()
    unused: Mapping[str, Place | None] = field(default_factory=dict)
    files: Sequence[str] = ()
    thread: str = ""
