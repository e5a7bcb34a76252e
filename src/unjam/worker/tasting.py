"""The dry run before a dataset's containers are shared: do workers only read them, and are the samples the same?

NOTE [ Dry run ]

A process that is made like a worker loads some samples three times with the same random numbers: with what stands for the containers; with
real ones, that have the items which were read; and as at first. A container that was written to, or whose items were changed, is left
alone. If the samples with real containers are others (or come where none came before), the standing ones are not good enough for
this code, and none is shared. A dataset that does not give the same sample twice cannot be compared; then what was read
and written decides.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from typing import Any

from unjam.sharing.private import Standing
from unjam.sharing.remembered import journals
from unjam.sharing.walking import slots
from unjam.worker.digest import digest
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
    _be_quiet()
    problem, came, began = "", 0, time.monotonic()
    tries: Any = itertools.repeat(None, 1) if spec.iterable else indices
    for index in tries:
        for journal in journals.values():
            journal.read = set()
        once = _load(cargo.dataset, index, spec)
        real = _put_real(cargo.dataset)
        with_real = _load(cargo.dataset, index, spec)
        for slot, standing in real:
            slot.put(standing)
        again = _load(cargo.dataset, index, spec)
        came += not with_real.startswith("!") or not once.startswith("!")
        if once != with_real and once == again:
            problem = _words(once, with_real)
            break
        if came >= SAMPLES or time.monotonic() - began > ENOUGH:
            break
    spoilt = {}
    for standing in _standing(cargo.dataset):
        standing.look()
        journal = standing.journal
        if journal.written:
            spoilt[standing.path] = f"the dataset's code writes to it ({journal.written})"
        elif journal.changed:
            spoilt[standing.path] = f"the dataset's code changes it: {journal.changed}"
    if not came and not problem:
        problem = "no sample came in the dry run"
    return Tasted(came, problem, spoilt)


def _be_quiet() -> None:
    """What the dataset prints would be seen twice."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _load(dataset: Any, index: Any, spec: WorkerSpec) -> str:
    """A sample's content in short; of an exception, its words after an exclamation mark."""
    seed_batch(spec.base_seed)
    try:
        if spec.iterable:
            return "|".join(digest(sample)[0] for sample in itertools.islice(iter(dataset), SAMPLES))
        if callable(getattr(dataset, "__getitems__", None)):
            return digest(dataset.__getitems__([index]))[0]
        return digest(dataset[index])[0]
    except Exception as error:  # noqa: BLE001 - the user's code; that it fails is an answer
        return f"!{type(error).__name__}: {error}"


def _standing(dataset: Any) -> list[Standing]:
    found = {id(slot.value): slot.value for slot in slots(dataset, "dataset") if issubclass(type(slot.value), Standing)}
    return list(found.values())


def _put_real(dataset: Any) -> list[tuple[Any, Standing]]:
    """Hang real containers in the place of the standing ones: whole, or with those items only that were read."""
    done, made = [], {}
    for slot in list(slots(dataset, "dataset")):
        standing = slot.value
        if slot.holder is not None and issubclass(type(standing), Standing):
            if id(standing) not in made:
                made[id(standing)] = standing.real()
            done.append((slot, standing))
            slot.put(made[id(standing)])
    return done


def _words(once: str, real: str) -> str:
    if once.startswith("!") and not real.startswith("!"):
        return f"with its containers shared the dataset raised {once[1:]}"
    return "with its containers shared the dataset gave another sample"
