import os
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Mapped(Dataset):
    def __init__(self, path, shape):
        self.rows = np.memmap(path, dtype=np.float32, mode="r", shape=shape)

    def __len__(self):
        return self.rows.shape[0]

    def __getitem__(self, i):
        row = np.array(self.rows[i])
        return torch.from_numpy(np.convolve(row, np.hanning(64), "same").astype(np.float32))


def main():
    shape = (200, 4000)
    path = os.path.join(tempfile.mkdtemp(), "rows.dat")
    out = np.memmap(path, dtype=np.float32, mode="w+", shape=shape)
    out[:] = np.random.default_rng(0).standard_normal(shape)
    out.flush()
    del out
    loader = DataLoader(Mapped(path, shape), batch_size=20, shuffle=True, num_workers=2)
    ae = torch.nn.Linear(4000, 4)
    for epoch in range(2):
        for x in loader:
            loss = ae(x).pow(2).mean()
            loss.backward()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
