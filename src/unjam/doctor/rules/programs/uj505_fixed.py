"""Create the generator in the worker."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.rng = None

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if self.rng is None:
            self.rng = np.random.default_rng(torch.initial_seed())
        return index + float(self.rng.normal())


if __name__ == "__main__":
    for _ in DataLoader(Noisy(), batch_size=4, num_workers=2):
        pass
