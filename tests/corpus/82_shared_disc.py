import contextlib
import fcntl
import os
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset


@contextlib.contextmanager
def exclusive(path):
    with open(path, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


class NetworkDisc(Dataset):
    def __init__(self, root, n=64):
        self.n = n
        self.mutex = os.path.join(root, "disc.lock")

    def __len__(self):
        return self.n

    def load(self, i):
        time.sleep(0.025)  # transfer
        return torch.full((128,), float(i))

    def __getitem__(self, i):
        with exclusive(self.mutex):
            x = self.load(i)
        return x / self.n


with tempfile.TemporaryDirectory() as root:
    loader = DataLoader(NetworkDisc(root), batch_size=4, num_workers=4)
    lin = torch.nn.Linear(128, 1)
    for epoch in range(2):
        start = time.perf_counter()
        for x in loader:
            lin(x).mean().backward()
        print(f"epoch {epoch} {time.perf_counter() - start:.2f} s")
