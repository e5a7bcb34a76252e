"""The dry run before a dataset's containers are shared: do workers only read them, and are the samples the same?

NOTE [ Dry run ]

A process that is made like a worker loads some samples twice with the same random numbers: with what stands for the containers, and with
real ones that have the items which were read. A container that was written to, or whose items were changed, is left
alone. If the samples with real containers are others (or come where none came before), the standing ones are not good enough for
this code, and none is shared. Where they differ, the sample is loaded a third time, as at first: a dataset that does not give
the same sample twice cannot be compared, and what was read and written decides. A dataset that has a part in something that belongs to several
processes (a counter, a queue) is not tried: what the dry run took, the workers would not have.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from typing import Any

from unjam.sharing.private import Standing
from unjam.transport.collating import is_default
from unjam.worker.digest import digest
from unjam.worker.forgiving import standing_slots
from unjam.worker.spec import Cargo, WorkerSpec, seed_batch

# samples, and seconds after which no further one is begun
SAMPLES, ENOUGH = 3, 0.5


@dataclass(frozen=True, slots=True)
class Tasted:
    """What the dry run saw. `problem`: why nothing may be shared; `spoilt`: by path, why this one may not; `samples` that came."""

    samples: int
    problem: str
    spoilt: dict[str, str]


def taste(cargo: Cargo, spec: WorkerSpec, indices: tuple[Any, ...]) -> Tasted:
    """Load some samples. See NOTE [ Dry run ]."""
    problem, came, began = "", 0, time.monotonic()
    tries: Any = itertools.repeat(None, 1) if spec.iterable else indices
    for index in tries:
        for _, standing in standing_slots(cargo.dataset):
            standing.record()
        once = _load(cargo, index, spec)
        real = _put_real(cargo.dataset)
        with_real = _load(cargo, index, spec)
        for slot, standing in real:
            slot.put(standing)
        came += not with_real.startswith("!") or not once.startswith("!")
        if once != with_real and once == _load(cargo, index, spec):
            problem = _words(once, with_real)
            break
        if came >= SAMPLES or time.monotonic() - began > ENOUGH:
            break
    spoilt = {}
    for standing in {id(one): one for _, one in standing_slots(cargo.dataset)}.values():
        standing.look()
        journal = standing.journal
        if journal.written:
            spoilt[standing.path] = journal.written
        elif journal.changed:
            spoilt[standing.path] = journal.changed
    if not came and not problem:
        problem = "no sample came in the dry run"
    return Tasted(came, problem, spoilt)


def be_quiet() -> None:
    """What the dataset prints would be seen twice."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _load(cargo: Cargo, index: Any, spec: WorkerSpec) -> str:
    """A sample's content in short, and its batch's; of an exception, its words after an exclamation mark."""
    dataset = cargo.dataset
    seed_batch(spec.base_seed)
    try:
        if spec.iterable:
            samples = list(itertools.islice(iter(dataset), SAMPLES))
        elif callable(getattr(dataset, "__getitems__", None)):
            samples = dataset.__getitems__([index])
        else:
            samples = [dataset[index]]
        found = digest(samples)[0]
        if not is_default(cargo.collate_fn):
            found += digest(cargo.collate_fn(samples if spec.auto_collation else samples[0]))[0]
        return found
    except Exception as error:  # noqa: BLE001 - the user's code; that it fails is an answer
        return f"!{type(error).__name__}: {error}"


def _put_real(dataset: Any) -> list[tuple[Any, Standing]]:
    """Hang real containers in the place of the standing ones: whole, or with those items only that were read."""
    made: dict[int, Any] = {}
    places = standing_slots(dataset)
    for slot, standing in places:
        if id(standing) not in made:
            made[id(standing)] = standing.real()
        slot.put(made[id(standing)])
    return places


def _words(once: str, real: str) -> str:
    if once.startswith("!") and not real.startswith("!"):
        return f"with its containers shared the dataset raised {once[1:]}"
    return "with its containers shared the dataset gave another sample"
