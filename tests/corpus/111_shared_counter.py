import multiprocessing as mp

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Outliers(Dataset):
    def __init__(self, n=180):
        self.x = np.random.default_rng(10).standard_t(3, (n, 2000)).astype(np.float32)
        self.clipped = mp.Value("i", 0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        row = np.sort(self.x[i])
        n = int((np.abs(row) > 6).sum())
        if n:
            with self.clipped.get_lock():
                self.clipped.value += n
        return torch.from_numpy(row.clip(-6, 6))


def main():
    ds = Outliers()
    loader = DataLoader(ds, batch_size=15, num_workers=2)
    for epoch in range(2):
        for x in loader:
            x.std(1).mean()
        print("epoch", epoch, "clipped so far", ds.clipped.value)
    assert ds.clipped.value == 2 * int((np.abs(ds.x) > 6).sum())


if __name__ == "__main__":
    main()
