import argparse
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Gram(Dataset):
    def __init__(self, n, dim):
        self.x = np.random.default_rng(0).standard_normal((n, dim, dim)).astype(np.float32)
        self.mean = torch.from_numpy(self.x).mean(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        g = self.x[i] @ self.x[i].T
        return torch.from_numpy(g) - self.mean


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()
    ds = Gram(100, 96)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    loader = DataLoader(ds, batch_size=10, num_workers=2)
    for epoch in range(args.epochs):
        trace = 0.0
        for g in loader:
            trace += g.diagonal(dim1=1, dim2=2).sum().item()
        print(epoch, trace)


if __name__ == "__main__":
    main()
