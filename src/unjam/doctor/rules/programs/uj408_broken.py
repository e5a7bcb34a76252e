"""Cache every sample."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index not in self.cache:
            time.sleep(0.002)
            self.cache[index] = torch.full((40000,), float(index))
        return self.cache[index]


if __name__ == "__main__":
    for _ in DataLoader(Cached(), batch_size=8, num_workers=2):
        pass
