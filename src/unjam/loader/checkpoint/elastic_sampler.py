"""A distributed sampler that can resume with a different number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Sampler

from unjam.errors import CannotResumeError
from unjam.loader.worker.sample_random import mix, seed_generators
from unjam.system.random_state import isolated_random_state


class ElasticSampler(Sampler[Any]):
    """Splits the samples of an epoch that are not yet consumed among the current ranks.

    All ranks use the same order of all samples, determined by `seed` and the epoch. A rank takes every
    `num_replicas`-th sample. The state is the epoch and the number of samples that all ranks together have consumed,
    so a run that resumes with a different number of ranks neither loses nor repeats a sample of the rest of the epoch.
    All ranks get the same number of samples: if the rest does not divide evenly, samples from the start of the epoch
    are repeated, as `DistributedSampler` does; with `drop_last`, the surplus is left out.

    source: a dataset, or another sampler (weighted, grouped by length, ...) that determines the order for all ranks.
        It is iterated once per epoch, with seeded generators, and may have `set_epoch`.

    Its state is saved and loaded with its loader (`loader.state_dict()`). Every rank may load the state of rank 0, if all ranks
    take the same number of steps.
    """

    def __init__(
        self,
        source: Sized | Sampler[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.num_replicas = num_replicas or (torch.distributed.get_world_size() if distributed else 1)
        self.rank = rank if rank is not None else (torch.distributed.get_rank() if distributed else 0)
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank should be from 0 to {self.num_replicas - 1}, but got rank={self.rank}")
        self.source, self.shuffle, self.seed, self.drop_last = source, shuffle, seed, drop_last
        self.epoch = 0
        # samples of this epoch that all ranks together consumed: before it was resumed, and by the current iterator
        self._before = self._since = 0

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; does nothing if it is the current one."""
        if epoch != self.epoch:
            self.epoch, self._before, self._since = epoch, 0, 0

    def __len__(self) -> int:
        """Return the number of samples that a rank gets in a full epoch."""
        total = len(self.source)  # type: ignore[arg-type] # samplers with a length
        return total // self.num_replicas if self.drop_last else -(-total // self.num_replicas)

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's share of the rest of the epoch."""
        self._since = 0
        order = self._order()
        left = order[self._before :]
        surplus = len(left) % self.num_replicas
        if surplus and self.drop_last:
            left = left[:-surplus]
        elif surplus:
            missing = self.num_replicas - surplus
            left = left + (order * (1 + missing // len(order)))[:missing]
        for index in left[self.rank :: self.num_replicas]:
            self._since += self.num_replicas
            yield index
        self.epoch, self._before, self._since = self.epoch + 1, 0, 0

    def _order(self) -> list[Any]:
        seed = mix(mix(0, self.seed), self.epoch)
        if isinstance(self.source, Sampler):
            set_epoch = getattr(self.source, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self.epoch)
            with isolated_random_state():
                seed_generators(seed)
                return list(self.source)
        if not self.shuffle:
            return list(range(len(self.source)))
        order: list[int] = torch.randperm(len(self.source), generator=torch.Generator().manual_seed(seed)).tolist()
        return order

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of samples that all ranks together have consumed in it."""
        return {"epoch": self.epoch, "consumed": self._before + self._since, "seed": self.seed}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Resume from a state, with the current number of ranks."""
        if state_dict["seed"] != self.seed:
            raise CannotResumeError(
                f"this state was saved with seed={state_dict['seed']}, but this sampler has seed={self.seed}, "
                "which gives a different order"
            )
        self.epoch, self._before, self._since = state_dict["epoch"], state_dict["consumed"], 0
