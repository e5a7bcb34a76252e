"""Use OpenMP with several threads before the fork and after it."""

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
    torch.set_num_threads(2)
    return float((big * index).sum())


if __name__ == "__main__":
    big = torch.ones(4000000)
    torch.set_num_threads(2)
    (big * 2).sum()
    for _ in DataLoader(Numbers(8, make), batch_size=4, num_workers=1):
        pass
