"""The cost of exact resume: saving a state, resuming in the middle of a long epoch, and random numbers per sample.

torchdata's `StatefulDataLoader` is measured too if it is installed.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time

import numpy as np
import torch
from torch.utils.data import Dataset

import unjam
from harness import interleave, table
from unjam.loader.worker.sample_random import SampleRandom

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None

MIDDLE, BATCH = 5_000_000, 256
ROUNDS = 5


class Many(Dataset):
    """Ten million samples that take no time."""

    def __init__(self, length: int = 2 * MIDDLE) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Augmented(Many):
    def __init__(self, use: str, length: int = 20_000) -> None:
        super().__init__(length)
        self.use = use

    def __getitem__(self, index: int) -> float:
        if self.use == "torch":
            return torch.rand(()).item()
        if self.use == "numpy":
            return float(np.random.rand())
        if self.use == "python":
            return random.random()
        return 0.0


def contenders() -> dict[str, type]:
    return {"unjam": unjam.DataLoader} | ({} if StatefulDataLoader is None else {"torchdata": StatefulDataLoader})


def loader_of(kind: type, workers: int = 2) -> torch.utils.data.DataLoader:
    context = "fork" if workers else None
    generator = torch.Generator().manual_seed(1)
    return kind(Many(), BATCH, shuffle=True, num_workers=workers, multiprocessing_context=context, generator=generator)


def first_batch(kind: type, state: dict | None) -> float:
    """Seconds from a new loader to its first batch."""
    begun = time.perf_counter()
    loader = loader_of(kind)
    if state is not None:
        loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - begun


def resume() -> list[list[str]]:
    rows = []
    states = {}
    for name, kind in contenders().items():
        loader = loader_of(kind, workers=2)
        iterator = iter(loader)
        for _ in itertools.islice(iterator, MIDDLE // BATCH if name != "unjam" else 8):
            pass
        states[name] = loader.state_dict()
        if name == "unjam":  # the state in the middle differs in numbers only: no need to load five million samples
            sampler = iter(loader_of(kind).batch_sampler)
            from unjam.loader.driver.epoch_progress import checksum

            drawn = 0
            for indices in itertools.islice(sampler, MIDDLE // BATCH):
                drawn = checksum(tuple(indices), drawn)
            states[name] |= {"position": MIDDLE // BATCH, "batches": MIDDLE // BATCH, "indices_checksum": drawn}
        del iterator
    runs = {f"{name}, new": (lambda kind=kind: first_batch(kind, None)) for name, kind in contenders().items()}
    runs |= {f"{n}, resumed": (lambda k=k, s=states[n]: first_batch(k, s)) for n, k in contenders().items()}
    seen = interleave(runs, ROUNDS)
    for name in contenders():
        more = seen[f"{name}, resumed"] - seen[f"{name}, new"]
        size = len(json.dumps(states[name], default=lambda one: one.tolist()))
        rows.append([name, f"{seen[f'{name}, new']:.2f} s", f"+{more:.2f} s (goal: 1 s)", f"{size / 1024:.1f} KB"])
    return rows


def state_cost() -> list[list[str]]:
    rows = []
    for name, kind in contenders().items():
        for workers in (0, 2):
            context = "fork" if workers else None
            loader = kind(Many(200_000), 64, shuffle=True, num_workers=workers, multiprocessing_context=context)
            iterator, times = iter(loader), []
            for _ in range(200):
                next(iterator)
                begun = time.perf_counter()
                loader.state_dict()
                times.append(time.perf_counter() - begun)
            del iterator
            rows.append([f"{name}, {workers} workers", f"{statistics.median(times) * 1e3:.2f} ms"])
    return rows


def sample_cost() -> list[list[str]]:
    """Microseconds per sample that `rng="sample"` adds, alone and in a loader."""
    seeds, count = SampleRandom(1, 1), 20_000
    rows = []
    for use in ("nothing", "torch", "numpy", "python"):
        data = Augmented(use)

        def alone(data=data) -> float:
            begun = time.perf_counter()
            for index in range(count):
                data[index]
            return time.perf_counter() - begun

        def seeded(data=data) -> float:
            begun = time.perf_counter()
            for index in range(count):
                seeds.seed_sample(index)
                data[index]
            return time.perf_counter() - begun

        def epoch(rng: str, data=data) -> float:
            loader = unjam.DataLoader(data, 64, num_workers=2, rng=rng, multiprocessing_context="fork")
            begun = time.perf_counter()
            for _ in loader:
                pass
            return time.perf_counter() - begun

        seen = interleave(
            {
                "alone": alone,
                "seeded": seeded,
                "worker": lambda epoch=epoch: epoch("worker"),
                "sample": lambda epoch=epoch: epoch("sample"),
            },
            ROUNDS,
        )
        more = (seen["seeded"] - seen["alone"]) / count * 1e6
        rows.append([f"uses {use}", f"{more:.1f} µs (goal: 3)", f"{seen['sample'] / seen['worker']:.2f}"])
    return rows


def main() -> None:
    table(
        f"The first batch in the middle of an epoch of {2 * MIDDLE:,} shuffled samples",
        ["", "new epoch", "resumed", "size of the state"],
        resume(),
    )
    table("state_dict() at every batch", ["", "a call"], state_cost())
    table('rng="sample" against "worker"', ["a sample that", "more a sample", "an epoch, 2 workers"], sample_cost())


if __name__ == "__main__":
    main()
