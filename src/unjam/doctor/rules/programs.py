"""Small datasets for the example programs of the rules.

They are at the top of a module so that every start method can pickle them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset


class Numbers(Dataset[Any]):
    """Samples made from their index by a function; without one, small tensors."""

    def __init__(self, length: int = 24, make: Callable[[int], Any] | None = None) -> None:
        self.length = length
        self.make = make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)) if self.make is None else self.make(index)


class Scaled(Dataset[Any]):
    """Numbers passed through the user's function."""

    def __init__(self, scale: Callable[[float], float]) -> None:
        self.scale = scale

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.scale(float(index)))


class Stream(IterableDataset[Any]):
    """The numbers from 0 as a stream; the function `cut` selects the share of a worker."""

    def __init__(self, length: int = 24, cut: Callable[[Iterator[int]], Iterator[int]] | None = None) -> None:
        self.length = length
        self.cut = cut

    def __iter__(self) -> Iterator[Any]:
        numbers = iter(range(self.length))
        for number in self.cut(numbers) if self.cut else numbers:
            yield torch.tensor(number)


class Forgetful(Dataset[Any]):
    """A dataset that leaves its scale out of the pickle unless `keep` is set."""

    scale = 1.0

    def __init__(self, *, keep: bool) -> None:
        self.scale = 2.0
        self.keep = keep

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self)) if self.keep else {"keep": False}

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.scale * index)


def double(x: float) -> float:
    """Return twice the number."""
    return 2 * x


def two_ranks(loader: Any, *, stuck: bool) -> None:
    """Run two ranks that all-reduce their batches; with `stuck`, rank 1's dataset never returns."""
    import multiprocessing  # noqa: PLC0415 - imported as a user's program would
    import tempfile  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=one_rank, args=(rank, loader, f"{folder}/meet", stuck), daemon=True)
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()


def one_rank(rank: int, loader: Any, meeting: str, stuck: bool) -> None:  # noqa: FBT001 - an argument of a process
    """Run one of the two ranks."""
    import time  # noqa: PLC0415 - as above

    from torch import distributed  # noqa: PLC0415 - as above

    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)

    def make(index: int) -> float:
        if stuck and rank == 1 and index == 6:
            time.sleep(100_000)
        time.sleep(0.1)
        return float(index)

    for batch in loader(Numbers(400, make), batch_size=4):
        distributed.all_reduce(batch)
    distributed.destroy_process_group()
