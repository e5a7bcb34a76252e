"""Create the generator with the dataset."""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return index + float(self.rng.normal())


if __name__ == "__main__":
    for _ in DataLoader(Noisy(), batch_size=4, num_workers=2):
        pass
