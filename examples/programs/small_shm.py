"""Batches of 64 MB with Docker's 64 MB of /dev/shm."""

import os

import torch
from common import loader_class, report
from torch.utils.data import Dataset


class Volumes(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((4, 1024, 1024), float(index))


if __name__ == "__main__":
    space = os.statvfs("/dev/shm")
    assert space.f_blocks * space.f_frsize <= 64 << 20, "/dev/shm is not small"
    count = 0
    for batch in loader_class()(Volumes(), batch_size=4, num_workers=2):
        assert batch.shape == (4, 4, 1024, 1024)
        count += 1
    report(ok=count == 6, text=f"{count} batches of 64 MB")
