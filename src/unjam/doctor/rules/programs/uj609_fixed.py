import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self):
        self.ready = {}

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index not in self.ready:
            time.sleep(0.02)
            self.ready[index] = torch.tensor(index)
        return self.ready[index]


loader = DataLoader(Slow(), batch_size=4, num_workers=1, persistent_workers=True)
for epoch in range(3):
    for batch in loader:
        pass
