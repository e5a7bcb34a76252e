"""Make two batches ahead."""

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
    import torch

    return torch.zeros(25000000, dtype=torch.uint8)


if __name__ == "__main__":
    for _ in DataLoader(Numbers(3, make), batch_size=1, num_workers=1, prefetch_factor=2):
        pass
