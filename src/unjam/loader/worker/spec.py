"""Settings and input of one worker, and its seeds."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unjam.loader.engine.policy import Policy
from unjam.loader.worker.progress import WorkerPosition
from unjam.system import torch_private as private


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The loader's settings that a worker needs. Plain data, sent with plain pickle."""

    worker: int
    workers: int
    iterable: bool
    auto_collation: bool
    drop_last: bool
    base_seed: int
    shared_seed: int | None
    threads: int | None
    by_value: bool
    policy: Policy = Policy()
    profile: bool = False
    # `rng="sample"`: the seed that the samples' random numbers come from; None: they are the worker's
    sample_seed: int | None = None
    epoch: int = 0
    # whether changed generator states are sent with each batch; send the dataset's state with every n-th batch
    reports_generators: bool = True
    snapshot_every: int = 1
    # the position of the worker that it replaces, or of this worker in an earlier run
    start_at: WorkerPosition | None = None
    # in the training process itself, where we must not catch Ctrl-C and sys.exit()
    inline: bool = False

    @property
    def number(self) -> int | None:
        """The worker's number; None for the training process."""
        return None if self.inline else self.worker

    def seed_everything(self) -> int:
        """Seed as torch seeds its workers, to get the same random numbers; return the seed."""
        seed = self.base_seed + self.worker
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(private.generate_state(self.base_seed, self.worker))  # noqa: NPY002 - same as torch
        return seed


@dataclass(slots=True)
class WorkerInput:
    """The user's objects that a worker needs; `shipping` sends them."""

    dataset: Any
    collate_fn: Any
    worker_init_fn: Any
    collate_additions: dict[Any, Any]
