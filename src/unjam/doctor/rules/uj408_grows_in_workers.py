"""The workers' memory grows with every sample.

What happened: loading a sample leaves something behind in the dataset: an entry in a cache, a list
or a dict. It grows separately in every worker.

Why: each worker has its own copy of the dataset. Each worker fills its own cache (and, without
`persistent_workers`, fills it again in each epoch) and never frees what the cache holds.

How to confirm: an attribute grows with the samples, and the worker's private memory grows with it.

How to fix: use a cache with a limit (`functools.lru_cache(maxsize=…)`), a cache on disk that all
workers read, or no cache.

Limits: growth inside libraries cannot be named; a cache that has a limit looks the same until it is
full.
"""

from __future__ import annotations

import itertools

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import filled_at, function_line
from unjam.doctor.proof import AGREES, SUGGESTED, Severity
from unjam.doctor.rules.rule import Finding, Rule, dataset_place, line_evidence
from unjam.doctor.rules.uj404_objects_copied_on_read import growth
from unjam.units import count, size

RULE = Rule("UJ408", "grows-in-workers", Severity.WARNING)
WORTH = 8 << 20
FITS = 0.05  # of the memory
EXPLAINS = 0.2  # the share of the growth that the kept objects must explain


def detect(case: Case) -> Finding | None:
    """Find workers whose memory grows, and an attribute that grows in them."""
    as_is, alone = case.as_is, case.alone
    if as_is is None or alone is None or not as_is.memory:
        return None
    each, workers = growth(as_is), case.loader.num_workers
    seen = max(m.samples for m in as_is.memory)
    length = case.loader.length or seen
    epoch = each * max(length / workers, seen)
    bounded = alone.dataset_changes.bounded
    kept = {name: one for name, one in alone.dataset_changes.kept.items() if name not in bounded}
    loaded = max(1, len(alone.samples))
    # what is kept of a sample, by the container that keeps it
    shares = {name: added * nbytes / loaded for name, (added, nbytes, _) in kept.items()}
    name = max(shares, key=lambda one: shares[one], default="")
    if epoch < WORTH or not name or shares[name] < EXPLAINS * each:
        return None
    traced = kept[name][2]
    files = case.watched_loader.description.files if case.watched_loader is not None else ()
    place = filled_at(files, name.rpartition(".")[2]) or case.loader.dataset_place
    # a cache is full when all samples are in it; that matters if it does not fit
    fits = epoch * workers < FITS * (case.process_facts.memory or 0)
    is_cache = place is not None and not any(call in quoted(place) for call in ("append(", "extend(", "+="))
    per_sample = max((b.nbytes for b in as_is.batches), default=0) / max(1, case.loader.batch_size or 1)
    return Finding(
        RULE,
        f"every worker grows by {size(each)} per sample: {name} keeps what it loads",
        name,
        (
            f"without workers, {loaded:,} samples added {count(kept[name][0], 'item')} of about {size(kept[name][1])} each to {name}",
            "the items are exceptions: each keeps its traceback, and so the variables of every frame" if traced else "",
            f"per epoch: about {size(epoch)} in each of {workers} workers, {size(epoch * workers)} in all",
            f"size of a sample: {size(per_sample)}" if per_sample else "",
            *line_evidence("at", place),
        ),
        AGREES if each > 1000 else SUGGESTED,
        f"keep str(error) in {name}, or error.with_traceback(None)"
        if traced
        else f"limit the size of {name}, or remove it: each worker fills its own copy",
        place,
        severity=Severity.NOTE if is_cache and fits else None,
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find an lru_cache without a limit that grows in each epoch of persistent workers."""
    for loader in watched.loaders:
        for worker in range(max(1, loader.workers)):
            held = [one.worker_hashes.get(worker if loader.workers else -1, {}) for one in loader.epochs]
            for path in held[0] if held else ():
                sizes = [one[path] for one in held if path in one]
                numbers = [int(one.partition(":")[0]) for one in sizes if one.endswith(":None")]
                if not path.endswith("(lru_cache)") or len(numbers) < 3 or not _always_grows(numbers):
                    continue
                name = path.partition(" ")[0]
                home = dataset_place(cases, loader)
                place = function_line(home.file, name) if home is not None else None
                return Finding(
                    RULE,
                    f"{name} keeps every result: its lru_cache has no limit and grows in each epoch of {loader.name}",
                    name,
                    (f"entries at the start of each epoch, in one worker: {', '.join(map(str, numbers[:6]))}",),
                    AGREES,
                    f"give the lru_cache of {name} a maxsize, or cache only results that are used again",
                    place or home or loader.made,
                )
    return None


def _always_grows(numbers: list[int]) -> bool:
    return all(after > before + 3 for before, after in itertools.pairwise(numbers))
