"""A dataset with a lambda among its attributes."""

import random

from torch.utils.data import DataLoader, Dataset


class Jittered(Dataset):
    def __init__(self, count):
        self.values = list(range(count))
        self.jitter = lambda value: value + random.random()

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.jitter(self.values[index])


for batch in DataLoader(Jittered(200), batch_size=10, num_workers=2):
    pass
print("done")
