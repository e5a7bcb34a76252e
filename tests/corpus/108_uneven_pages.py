import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Pages(Dataset):
    """Reading time depends on the size of the page."""

    def __init__(self, n=100):
        self.sizes = np.random.default_rng(0).lognormal(1.6, 0.6, n).clip(1, 30)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        time.sleep(self.sizes[i] / 1000)
        return torch.full((40,), float(self.sizes[i])), i


def main():
    loader = DataLoader(Pages(), batch_size=5, shuffle=True, num_workers=2, prefetch_factor=4)
    lin = torch.nn.Linear(40, 1)
    for epoch in range(3):
        t = time.perf_counter()
        for x, _ in loader:
            lin(x).mean().backward()
        print(f"epoch {epoch} {time.perf_counter() - t:.2f}s")


if __name__ == "__main__":
    main()
