"""Use a stream that is split among the workers."""

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
    for _ in DataLoader(Stream(24, cut), batch_size=4, num_workers=2):
        pass
