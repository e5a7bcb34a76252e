import argparse

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Volume(Dataset):
    def __init__(self, rows, cols):
        self.table = np.ones((rows, cols), dtype=np.float32)
        self.table *= np.arange(rows, dtype=np.float32)[:, None]

    def __len__(self):
        return 200

    def __getitem__(self, i):
        chunk = self.table[i * 90:(i + 1) * 90]
        return torch.from_numpy(chunk.mean(0)[:256])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=18000)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()
    loader = DataLoader(Volume(args.rows, 4200), batch_size=20, num_workers=2, multiprocessing_context="spawn")
    for epoch in range(args.epochs):
        s = sum(float(b.mean()) for b in loader)
        print("epoch", epoch, s)


if __name__ == "__main__":
    main()
