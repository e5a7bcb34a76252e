"""The same batches as torch, to the byte, over the documented options."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.utils.data
from support import Bulk, Counting, Nested, Noisy, Squares, Strings, Uneven, epochs, seed_all, tear
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

import unjam

TORCH = torch.utils.data.DataLoader


def both(make_dataset, *, count=1, **options):
    ours = epochs(unjam.DataLoader, make_dataset, count=count, options=options)
    theirs = epochs(TORCH, make_dataset, count=count, options=options)
    assert ours == theirs
    return ours


WORKERS = (0, 1, 3)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("batch_size", [None, 1, 4])
@pytest.mark.parametrize("dataset", [Squares, Noisy, Bulk, Strings, Nested, Counting, Uneven])
def test_datasets(dataset, batch_size, workers):
    both(dataset, batch_size=batch_size, num_workers=workers)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_worker_randomness_over_epochs(workers, persistent):
    if persistent and not workers:
        return
    got = both(Noisy, count=3, batch_size=5, num_workers=workers, shuffle=True, persistent_workers=persistent)
    assert got[0] != got[1], "epochs differ"


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("dataset", [Noisy, lambda: Counting(noisy=True)])
def test_drop_last(dataset, drop_last, workers):
    both(dataset, batch_size=7, num_workers=workers, drop_last=drop_last)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_prefetch_factor(prefetch, workers):
    both(Noisy, batch_size=3, num_workers=workers, prefetch_factor=prefetch)


@pytest.mark.parametrize("workers", WORKERS)
def test_samplers(workers):
    for make in (
        lambda: SequentialSampler(range(20)),
        lambda: RandomSampler(range(20), replacement=True, num_samples=31),
        lambda: SubsetRandomSampler([3, 5, 8, 13]),
        lambda: WeightedRandomSampler([0.1, 5, 2], 9),
        lambda: [4, 2, 0],
    ):
        both(Noisy, batch_size=3, num_workers=workers, sampler=make())
    both(Noisy, num_workers=workers, batch_sampler=BatchSampler(SequentialSampler(range(11)), 4, drop_last=False))
    both(Noisy, num_workers=workers, batch_sampler=[[1, 2], [3], [4, 5, 6]])
    both(Strings, batch_size=2, num_workers=workers, sampler=["1", "7", "5"])


@pytest.mark.parametrize("workers", WORKERS)
def test_generator(workers):
    results = []
    for loader_class in (TORCH, unjam.DataLoader):
        loader = loader_class(
            Noisy(), batch_size=4, num_workers=workers, shuffle=True, generator=torch.Generator().manual_seed(3)
        )
        seed_all(1)
        results.append([[tear(batch) for batch in loader] for _ in range(2)])
    assert results[0] == results[1]


def double(batch):
    return torch.stack([sample["torch"] * 2 for sample in batch]), [sample["index"] for sample in batch]


def calls_default(batch):
    return torch.utils.data.default_collate([sample for sample in batch if sample["index"] % 3])


@pytest.mark.parametrize("collate", [double, calls_default, lambda batch: batch, lambda batch: len(batch)])
@pytest.mark.parametrize("workers", WORKERS)
def test_custom_collate(collate, workers):
    both(Noisy, batch_size=4, num_workers=workers, collate_fn=collate)


def seed_worker(worker):
    import random

    import numpy as np

    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed + worker)


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_start_methods(method):
    both(Noisy, batch_size=6, num_workers=2, worker_init_fn=seed_worker, multiprocessing_context=method)


def test_out_of_order_delivers_each_once():
    loader = unjam.DataLoader(Squares(50), batch_size=4, num_workers=3, in_order=False)
