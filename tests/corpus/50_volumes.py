import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """CT-like volumes, upsampled on the fly."""

    def __init__(self, n=12, side=64, factor=11):
        self.base = np.random.default_rng(0).random((n, side, side), dtype=np.float32)
        self.factor = factor

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        small = self.base[i]
        # (side * factor) ** 2 * side floats
        up = np.kron(small, np.ones((self.factor, self.factor), np.float32))
        vol = np.repeat(up[None], 650, axis=0)
        vol += 1.0
        return torch.from_numpy(vol.mean(0)[::self.factor, ::self.factor].copy())


if __name__ == "__main__":
    loader = DataLoader(Volumes(), batch_size=2, num_workers=2)
    for epoch in range(2):
        for v in loader:
            m = v.mean()
        print(epoch, m.item())
