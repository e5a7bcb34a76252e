"""Return a copy of the buffer."""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Frames(Dataset):
    def __init__(self):
        self.buffer = np.zeros(100, dtype=np.float32)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.buffer[:] = index
        return self.buffer.copy()


if __name__ == "__main__":
    for _ in DataLoader(Frames(), batch_size=4, num_workers=1):
        pass
