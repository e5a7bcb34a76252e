import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def init_worker(worker_id):
    seed = torch.initial_seed() + worker_id
    random.seed(seed)
    np.random.seed(seed)


class Jitter(Dataset):
    def __init__(self, n=120):
        self.base = np.linspace(0, 1, n, dtype=np.float32)

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        return self.base[i] + np.random.randn(6).astype(np.float32) * 0.01


def fit(loader, epochs=2):
    model = torch.nn.Linear(6, 6)
    for e in range(epochs):
        for x in loader:
            loss = (model(x) - x).abs().mean()
            loss.backward()
        print(e, loss.item())


if __name__ == "__main__":
    torch.manual_seed(7)
    fit(DataLoader(Jitter(), batch_size=12, shuffle=True, num_workers=2, worker_init_fn=init_worker))
