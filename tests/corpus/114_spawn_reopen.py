import os
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class BinaryRows(Dataset):
    def __init__(self, path, width):
        self.path, self.width = path, width
        self.file = open(path, "rb")
        self.rows = os.path.getsize(path) // (4 * width)

    def __getstate__(self):
        state = self.__dict__.copy()
        del state["file"]
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.file = open(self.path, "rb")

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        self.file.seek(i * 4 * self.width)
        return torch.from_numpy(np.frombuffer(self.file.read(4 * self.width), np.float32).copy())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "rows.bin")
        np.repeat(np.arange(300, dtype=np.float32), 100).tofile(path)
        loader = DataLoader(BinaryRows(path, 100), batch_size=30, shuffle=True, num_workers=2,
                            multiprocessing_context="spawn", persistent_workers=True)
        for epoch in range(3):
            total = sum(b[:, 0].sum().item() for b in loader)
            assert total == sum(range(300))
            print("epoch", epoch, total)
