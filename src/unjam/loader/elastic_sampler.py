"""A distributed sampler that can go on with another number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Sampler

from unjam.errors import CannotResumeError
from unjam.loader.worker.sample_random import mixed
from unjam.loader.worker.spec import isolated_random_state, seed_batch


class ElasticSampler(Sampler[Any]):
    """Divides the samples of an epoch among the ranks there are now, after those that were consumed.

    All ranks have one order of all samples, from `seed` and the epoch. A rank takes every `num_replicas`-th sample. The
    state is (epoch, samples that all ranks have consumed together), so a run that goes on with another number of
    ranks loses and repeats no sample of the rest of the epoch. At the end, the last samples are filled up with the
    epoch's first ones so that all ranks have the same number, as `DistributedSampler` does; with `drop_last` they are
    left out.

    source: a dataset, or another sampler (weighted, grouped by length, ...) that gives one order for all ranks. It is
        asked once per epoch, with seeded generators, and may have `set_epoch`.

    Save and load it with its loader (`loader.state_dict()`). Every rank may load the state of rank 0, if all ranks
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
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.num_replicas = num_replicas or (torch.distributed.get_world_size() if together else 1)
        self.rank = rank if rank is not None else (torch.distributed.get_rank() if together else 0)
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank should be from 0 to {self.num_replicas - 1}, but got rank={self.rank}")
        self.source, self.shuffle, self.seed, self.drop_last = source, shuffle, seed, drop_last
        self.epoch = 0
        # samples of this epoch that all ranks together had consumed when the present iterator began, and since then
        self._before = self._since = 0

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; nothing changes if it is the one that is being consumed."""
        if epoch != self.epoch:
            self.epoch, self._before, self._since = epoch, 0, 0

    def __len__(self) -> int:
        """Return how many samples of a whole epoch a rank gets."""
        total = len(self.source)  # type: ignore[arg-type] # samplers with a length
        return total // self.num_replicas if self.drop_last else -(-total // self.num_replicas)

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's samples of the rest of the epoch."""
        self._before, self._since = self._before + self._since, 0
        order = self._order()
        left = order[self._before :]
        short = -len(left) % self.num_replicas
        if short and self.drop_last:
            left = left[: len(left) - len(left) % self.num_replicas]
        elif short:
            left = left + (order * (1 + short // max(1, len(order))))[:short]
        for index in left[self.rank :: self.num_replicas]:
            self._since += self.num_replicas
            yield index
        self.epoch, self._before, self._since = self.epoch + 1, 0, 0

    def _order(self) -> list[Any]:
        seed = mixed(mixed(0, self.seed), self.epoch)
        if isinstance(self.source, Sampler):
            set_epoch = getattr(self.source, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self.epoch)
            with isolated_random_state():
                seed_batch(seed)
                return list(self.source)
        if not self.shuffle:
            return list(range(len(self.source)))
        order: list[int] = torch.randperm(len(self.source), generator=torch.Generator().manual_seed(seed)).tolist()
        return order

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the samples that all ranks have consumed in it."""
        return {"epoch": self.epoch, "consumed": self._before + self._since, "seed": self.seed}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go on from a state, with as many ranks as there are now."""
        if state_dict["seed"] != self.seed:
            raise CannotResumeError(
                f"this state was taken with seed={state_dict['seed']}, and this sampler has seed={self.seed}: "
                "the order would be another one"
            )
        self.epoch, self._before, self._since = state_dict["epoch"], state_dict["consumed"], 0
