"""Keep batches in a list, with a low limit of descriptors."""

import resource

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


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4096))
    kept = []
    for batch in DataLoader(Numbers(600), batch_size=2, num_workers=1):
        kept.append(batch)
