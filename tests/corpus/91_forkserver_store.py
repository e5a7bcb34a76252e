import threading
from collections import OrderedDict

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class BoundedCache:
    def __init__(self, limit):
        self.limit = limit
        self.entries = OrderedDict()
        self.mutex = threading.Lock()

    def get(self, key, make):
        with self.mutex:
            if key not in self.entries:
                self.entries[key] = make(key)
                if len(self.entries) > self.limit:
                    self.entries.popitem(last=False)
            return self.entries[key]


def load_block(b):
    return np.random.RandomState(b).rand(50, 6).astype(np.float32)


class Blocks(Dataset):
    def __init__(self, blocks=6):
        self.blocks = blocks
        self.cache = BoundedCache(4)

    def __len__(self):
        return self.blocks * 50

    def __getitem__(self, i):
        return torch.from_numpy(self.cache.get(i // 50, load_block)[i % 50].copy())


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("forkserver")
    loader = DataLoader(Blocks(), batch_size=25, num_workers=2)
    for epoch in range(2):
        mean = torch.stack([b.mean(0) for b in loader]).mean(0)
        print(epoch, mean.tolist())
