"""Pass a function for workers to a loader without workers."""

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
    torch.manual_seed(worker)


if __name__ == "__main__":
    for _ in DataLoader(Numbers(8), batch_size=4, worker_init_fn=prepare):
        pass
