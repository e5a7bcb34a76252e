import argparse

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Series(Dataset):
    def __init__(self, n, transform):
        self.data = np.cumsum(np.random.default_rng(1).standard_normal((n, 64)), axis=1).astype(np.float32)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return torch.from_numpy(self.transform(np.sort(self.data[i])))


def collate(rows):
    return torch.stack(rows)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--start-method", default="spawn")
    a = p.parse_args(argv)
    loader = DataLoader(Series(200, Scale(0.1)), batch_size=20, shuffle=True, num_workers=2, collate_fn=collate,
                        multiprocessing_context=a.start_method, persistent_workers=True)
    for ep in range(a.epochs):
        mean = sum(b.mean().item() for b in loader) / len(loader)
        print(ep, mean)


if __name__ == "__main__":
    main()
