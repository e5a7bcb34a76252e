"""What one worker is told about itself."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from unjam.loader.engine.policy import Policy
from unjam.system import torch_private as private


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The loader's settings as a worker needs them. Plain data: it travels by plain pickle."""

    worker: int
    workers: int
    iterable: bool
    auto_collation: bool
    drop_last: bool
    base_seed: int
    shared_seed: int | None
    threads: int | None
    by_value: bool
    policy: Policy = Policy()  # noqa: RUF009 - frozen
    profile: bool = False

    def by_name(self) -> WorkerSpec:
        """The same for a worker that has the user's `__main__`."""
        return dataclasses.replace(self, by_value=False)

    def seed_everything(self) -> int:
        """Seed as torch does in its workers, so that the random numbers are the same; return the seed."""
        seed = self.base_seed + self.worker
        random.seed(seed)
        torch.manual_seed(seed)
        if private.HAS_NUMPY:
            import numpy as np  # noqa: PLC0415 - optional, as in torch

            np.random.seed(private.generate_state(self.base_seed, self.worker))  # noqa: NPY002 - parity
        return seed


@contextlib.contextmanager
def own_random_numbers() -> Iterator[None]:
    """Whatever is drawn inside is not drawn: the generators that torch seeds go on where they were."""
    python, own = random.getstate(), torch.default_generator.get_state()
    numpy = sys.modules.get("numpy")
    theirs = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(own)
        if numpy is not None:
            numpy.random.set_state(theirs)


def seed_batch(seed: int) -> None:
    """Seed for one batch, where its random numbers must not depend on who makes it."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    loaded = sys.modules.get("numpy")
    if loaded is not None:
        loaded.random.seed(seed & 0xFFFFFFFF)


def batch_seed(base: int, epoch: int, number: int) -> int:
    """A seed for each batch, far from its neighbours'."""
    mixed = (base + epoch * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
    mixed = (mixed ^ mixed >> 31) * 0x94D049BB133111EB & (1 << 64) - 1
    return mixed >> 1


@dataclass(slots=True)
class Cargo:
    """The user's objects that a worker works with; they travel by `shipping`."""

    dataset: Any
    collate_fn: Any
    worker_init_fn: Any
    collate_additions: dict[Any, Any]
