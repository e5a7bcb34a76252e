"""Split 32 samples: each of two workers gets 16 and drops none."""

import itertools

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    """The numbers from 0 as a stream; the function `cut` selects the share of a worker."""

    def __init__(self, length=24, cut=None):
        self.length = length
        self.cut = cut

    def __iter__(self):
        numbers = iter(range(self.length))
        for number in self.cut(numbers) if self.cut else numbers:
            yield torch.tensor(number)


def cut(numbers):
    info = get_worker_info()
    return itertools.islice(numbers, info.id, None, info.num_workers) if info else numbers


if __name__ == "__main__":
    length = 32
    for _ in DataLoader(Stream(length, cut), batch_size=4, num_workers=2, drop_last=True):
        pass
