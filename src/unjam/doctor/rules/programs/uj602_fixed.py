"""Use no lock."""

import contextlib
import time

from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self):
        self.lock = around

    def __len__(self):
        return 400

    def __getitem__(self, index):
        with self.lock:
            time.sleep(0.01)
        return index


if __name__ == "__main__":
    around = contextlib.nullcontext()
    for _ in DataLoader(Files(), batch_size=4, num_workers=2):
        pass
