"""Every sample opens the same file and reads far more of it than it uses.

What happened: for each sample, the dataset opens the same file and reads or parses much more than
the sample contains.

Why: `__getitem__` reads the whole table, archive or document for one row of it.

How to confirm: time `__getitem__`, or count the bytes that it reads.

How to fix: read it once (in `__init__`, or on first use in the worker), or use a format with random
access: numpy's `mmap_mode="r"`, HDF5, LMDB, Arrow.

Limits: files that a library opens without Python are not named, but their bytes are counted.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source_places import attribute_calls, stored
from unjam.doctor.mechanisms.time_spent import ServedByOneProcess
from unjam.doctor.proof import AGREES, Severity
from unjam.doctor.rules.rule import Finding, Rule, dataset_place
from unjam.units import duration, size

RULE = Rule("UJ608", "reads-much-more-than-it-uses", Severity.WARNING)
TIMES, LEAST, FEWEST = 20, 50_000, 8
WORTH = 0.3  # seconds for all samples of an epoch
READERS = (
    "open", "load", "loads", "read_csv", "read_parquet", "read_json", "read_table", "read_excel", "ZipFile", "TarFile",
    "read_text", "read_bytes", "read", "readlines", "loadtxt", "genfromtxt", "File", "reader", "DictReader",
)  # fmt: skip


def words(one: ServedByOneProcess) -> Words:
    """Say what is read through the proxy, and what to use instead."""
    name = one.path.rpartition(".")[2]
    return Words(
        f"every access to {one.path} is a message to one manager process, and {one.share:.0%} of the loading time is spent waiting for it",
        f"keep {name} in shared memory (a tensor with share_memory_(), a memory-mapped array), or read larger parts of it at once",
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare the number of bytes that samples read with the size of the samples."""
    for loader in watched.loaders:
        samples = [sample for epoch in loader.epochs for sample in epoch.samples[1:] if sample.read]
        if len(samples) < FEWEST:
            continue
        read = statistics.median(one.read for one in samples)
        used = max(1.0, statistics.median(one.size for one in samples))
        took = statistics.median(one.seconds for one in samples)
        paths = Counter(path for one in samples for path in set(one.files) if not path.endswith((".py", ".pyc")))
        path, times = paths.most_common(1)[0] if paths else ("", 0)
        each = took * (loader.description.length or len(samples))
        if read < LEAST or read < TIMES * used or each < WORTH:
            continue
        proxies = loader.description.proxies
        if times < 0.8 * len(samples) and proxies:
            return _through_proxy(loader, cases, str(proxies[0]), read, used, took)
        if times < 0.8 * len(samples):
            continue
        at = dataset_place(cases, loader)
        opened = next(iter(attribute_calls(at.file, READERS)), None) if at is not None else None
        dataset = loader.description.base
        return Finding(
            RULE,
            f"every sample of {dataset} opens {os.path.basename(path)}, reads {size(read)} and uses {size(used)}",
            f"{dataset}.__getitem__ reads {os.path.basename(path)}",
            (
                f"{path} is opened for every examined sample",
                f"a sample reads {size(read)}, has a size of {size(used)} and takes {duration(took)}",
            ),
            AGREES,
            f"read {os.path.basename(path)} once, on first use in each worker, or use a format with random access",
            opened or at or loader.made or loader.place,
        )
    return None


def _through_proxy(
    loader: WatchedLoader, cases: list[Case], path: str, read: float, used: float, took: float
) -> Finding:
    at = dataset_place(cases, loader)
    name = path.rpartition(".")[2]
    place = next(iter(stored(at.file, name)), None) if at is not None else None
    return Finding(
        RULE,
        f"every sample reads {size(read)} through {path}, a proxy of a manager process, and uses {size(used)}",
        path,
        (
            f"a sample receives {size(read)} from another process, has a size of {size(used)} and takes {duration(took)}",
            "a proxy pickles the whole value for each access",
        ),
        AGREES,
        f"keep {name} in shared memory (a tensor with share_memory_(), numpy's mmap_mode) instead of a manager",
        place or at or loader.made or loader.place,
    )
