import multiprocessing
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class TapeReader(Dataset):
    """Reads come from slow storage."""

    def __init__(self, blocks=60, latency=0.02):
        self.blocks = np.random.rand(blocks, 256).astype("float32")
        self.latency = latency
        self.read_lock = multiprocessing.Lock()

    def __len__(self):
        return len(self.blocks)

    def _fetch(self, i):
        time.sleep(self.latency)
        return self.blocks[i]

    def __getitem__(self, i):
        with self.read_lock:
            block = self._fetch(i)
        return torch.from_numpy(block)


def main():
    loader = DataLoader(TapeReader(), batch_size=4, shuffle=True, num_workers=2)
    model = torch.nn.Linear(256, 1)
    for epoch in range(2):
        t = time.time()
        for x in loader:
            model(x).mean().backward()
        print("epoch %d took %.1fs" % (epoch, time.time() - t))


if __name__ == "__main__":
    main()
