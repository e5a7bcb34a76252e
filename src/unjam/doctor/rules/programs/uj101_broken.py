"""Put a lambda into the dataset and use forkserver."""

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
    for _ in DataLoader(Scaled(lambda x: 2 * x), batch_size=4, num_workers=1, multiprocessing_context="forkserver"):
        pass
