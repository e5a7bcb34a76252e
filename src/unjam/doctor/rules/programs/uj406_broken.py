"""Keep a large array in the dataset and use forkserver."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Scaled(Dataset):
    """Numbers passed through the user's function."""

    def __init__(self, scale):
        self.scale = scale

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor(self.scale(float(index)))


if __name__ == "__main__":
    data = Scaled(abs)
    data.table = np.ones(30000000, dtype=np.float32)
    for _ in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="forkserver"):
        pass
