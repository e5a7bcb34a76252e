"""Override both."""

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


class Store(Numbers):
    def __getitems__(self, indices):
        return [Numbers.__getitem__(self, index) for index in indices]


class Scaled(Store):
    def __getitem__(self, index):
        return super().__getitem__(index) * 2


class Whole(Scaled):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


if __name__ == "__main__":
    both = True
    for _ in DataLoader((Whole if both else Scaled)(16), batch_size=4, num_workers=1):
        pass
