from multiprocessing import Pool

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def tile_stats(tile):
    return [tile.mean(), tile.std(), np.median(tile)]


class Mosaic(Dataset):
    def __init__(self, n=40, side=64):
        self.images = np.random.default_rng(1).random((n, side, side))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        im = self.images[i]
        tiles = [im[a:a + 32, b:b + 32] for a in (0, 32) for b in (0, 32)]
        with Pool(2) as pool:
            stats = pool.map(tile_stats, tiles)
        return torch.tensor(stats)


if __name__ == "__main__":
    loader = DataLoader(Mosaic(), batch_size=4, num_workers=2)
    lin = torch.nn.Linear(12, 2)
    for epoch in range(2):
        for s in loader:
            out = lin(s.flatten(1).float())
        print(epoch, out.mean().item())
