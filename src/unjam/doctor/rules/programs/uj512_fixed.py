"""Yield 20 samples and report a length of 20."""

import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """The numbers from 0 as a stream; the function `cut` selects the share of a worker."""

    def __init__(self, length=24, cut=None):
        self.length = length
        self.cut = cut

    def __iter__(self):
        numbers = iter(range(self.length))
        for number in self.cut(numbers) if self.cut else numbers:
            yield torch.tensor(number)


class Counted(Stream):
    def __len__(self):
        return said


if __name__ == "__main__":
    said = 20
    for _ in DataLoader(Counted(20), batch_size=4):
        pass
