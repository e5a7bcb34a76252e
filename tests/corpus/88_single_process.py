import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def pin_worker(worker_id):
    """One core per worker."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[worker_id % len(cores)]})


class Walks(Dataset):
    def __init__(self, n=150):
        self.steps = np.random.default_rng(6).integers(-1, 2, (n, 100))

    def __len__(self):
        return len(self.steps)

    def __getitem__(self, i):
        return self.steps[i].cumsum().astype(np.float32)


config = dict(batch_size=15, shuffle=True, num_workers=0, worker_init_fn=pin_worker)

if __name__ == "__main__":
    loader = DataLoader(Walks(), **config)
    gru = torch.nn.GRU(1, 4, batch_first=True)
    for epoch in range(2):
        for w in loader:
            _, h = gru(w.unsqueeze(-1))
        print(epoch, h.mean().item())
