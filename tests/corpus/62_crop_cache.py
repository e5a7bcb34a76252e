import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class CachedCrops(Dataset):
    def __init__(self, n=80, side=640, crop=512):
        self.n, self.side, self.crop = n, side, crop
        self.cache = {}

    def __len__(self):
        return self.n

    def render(self, i, y, x):
        key = (i, y, x)
        if key not in self.cache:
            yy, xx = np.mgrid[y:y + self.crop, x:x + self.crop].astype(np.float32)
            self.cache[key] = np.sin(yy * (i + 1) / 100) * np.cos(xx / 50)
        return self.cache[key]

    def __getitem__(self, i):
        y = random.randint(0, self.side - self.crop)
        x = random.randint(0, self.side - self.crop)
        return torch.from_numpy(self.render(i, y, x)[::16, ::16].copy())


if __name__ == "__main__":
    loader = DataLoader(CachedCrops(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    lin = torch.nn.Linear(32 * 32, 1)
    for epoch in range(5):
        for x in loader:
            lin(x.flatten(1)).mean().backward()
        print("epoch", epoch)
