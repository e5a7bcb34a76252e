"""Read a stream that does not ask which worker it is, without workers."""

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


if __name__ == "__main__":
    for _ in DataLoader(Stream(8), batch_size=4):
        pass
