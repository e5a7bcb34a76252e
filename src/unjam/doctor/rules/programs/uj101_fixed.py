"""Use a function with a name."""

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


def double(x):
    """Return twice the number."""
    return 2 * x


if __name__ == "__main__":
    for _ in DataLoader(Scaled(double), batch_size=4, num_workers=1, multiprocessing_context="forkserver"):
        pass
