"""Make the seed from the seed of torch."""

import numpy as np
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


def make(index):
    return index + float(np.random.rand())


def prepare(worker):
    np.random.seed(torch.initial_seed() % 2**32)


if __name__ == "__main__":
    loader = DataLoader(Numbers(16, make), batch_size=4, num_workers=2, worker_init_fn=prepare)
    for _ in range(2):
        for _ in loader:
            pass
