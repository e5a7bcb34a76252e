import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


def read_rgb(path):
    with Image.open(path) as im:
        return np.asarray(im.convert("RGB"))


class StereoPairs(Dataset):
    def __init__(self, folder):
        self.left = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.startswith("l"))
        self.pool = ThreadPoolExecutor(max_workers=2)
        # mean over the first images, read in parallel
        first = list(self.pool.map(read_rgb, self.left[:8]))
        self.mean = np.stack(first).mean((0, 1, 2))

    def __len__(self):
        return len(self.left)

    def __getitem__(self, i):
        l = self.left[i]
        r = l.replace(os.sep + "l", os.sep + "r")
        a, b = self.pool.map(read_rgb, (l, r))
        pair = np.concatenate([a, b], 1) - self.mean
        return torch.from_numpy(pair).float()


def generate(n=40):
    d = tempfile.mkdtemp()
    rng = np.random.default_rng(0)
    for i in range(n):
        for side in "lr":
            Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(f"{d}/{side}{i:03d}.png")
    return d


def main():
    loader = DataLoader(StereoPairs(generate()), batch_size=4, shuffle=True, num_workers=2)
    for epoch in range(2):
        s = 0.0
        for x in loader:
            s += x.std().item()
        print("epoch", epoch, s)


if __name__ == "__main__":
    main()
