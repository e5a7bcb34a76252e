"""Use one thread in each worker."""

import numpy as np
import threadpoolctl
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


def prepare(worker):
    threadpoolctl.threadpool_limits(1)


def make(index):
    product = matrix
    for _ in range(4):
        product = product @ matrix
    return float(product[0, 0])


if __name__ == "__main__":
    matrix = np.random.default_rng(0).normal(size=(200, 200))
    for _ in DataLoader(Numbers(600, make), batch_size=10, num_workers=2, worker_init_fn=prepare):
        pass
