"""Half a gigabyte of frames in memory, and batches of 16 MB to the training loop."""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Frames(Dataset):
    def __init__(self, count, side=512):
        self.frames = np.ones((count, side, side), dtype=np.float32)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        return self.frames[index]


loader = DataLoader(Frames(480), batch_size=16, num_workers=4)
for batch in loader:
    mean = batch.mean()
print("done")
