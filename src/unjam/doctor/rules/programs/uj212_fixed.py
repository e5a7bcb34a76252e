"""Run two ranks whose datasets return."""

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    """Samples made from their index by a function; without one, small tensors."""

    def __init__(self, length=24, make=None):
        self.length = length
        self.make = make

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((4,), float(index)) if self.make is None else self.make(index)


def two_ranks(loader, *, stuck):
    """Run two ranks that all-reduce their batches; with `stuck`, rank 1's dataset never returns."""
    import multiprocessing
    import tempfile

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


def one_rank(rank, loader, meeting, stuck):
    """Run one of the two ranks."""
    import time

    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)

    def make(index):
        if stuck and rank == 1 and (index == 6):
            time.sleep(100000)
        time.sleep(0.1)
        return float(index)

    for batch in loader(Numbers(400, make), batch_size=4):
        distributed.all_reduce(batch)
    distributed.destroy_process_group()


if __name__ == "__main__":
    two_ranks(DataLoader, stuck=False)
