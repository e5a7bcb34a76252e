import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader, Dataset


class Tiled(Dataset):
    """A sample consists of four files, read at the same time."""

    def __init__(self, root, n):
        self.root, self.n = root, n
        self._pool = None

    @property
    def pool(self):
        if self._pool is None:
            self._pool = ThreadPoolExecutor(4)
        return self._pool

    def __len__(self):
        return self.n

    def _read(self, name):
        time.sleep(0.002)
        with open(os.path.join(self.root, name), "rb") as f:
            return torch.frombuffer(bytearray(f.read()), dtype=torch.uint8)

    def __getitem__(self, i):
        return torch.stack(list(self.pool.map(self._read, [f"{i}_{k}.bin" for k in range(4)])))


with tempfile.TemporaryDirectory() as root:
    for i in range(80):
        for k in range(4):
            with open(f"{root}/{i}_{k}.bin", "wb") as f:
                f.write(bytes([i, k] * 32))
    loader = DataLoader(Tiled(root, 80), batch_size=8, shuffle=True, num_workers=2)
    for epoch in range(2):
        total = sum(int(t.sum()) for t in loader)
        print("epoch", epoch, total)
