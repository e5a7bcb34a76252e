"""A training that waits for data: samples come from a slow server, and two workers are too few."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Normalise:
    def __call__(self, image):
        return (image - image.mean()) / image.std()


class Flip:
    def __call__(self, image):
        return image.flip(-1) if torch.rand(()) < 0.5 else image


class Steps:
    """A typical composition of transforms."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class Photos(Dataset):
    def __init__(self):
        self.transform = Steps([Normalise(), Flip()])

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)  # the server's response time
        return self.transform(torch.rand(3, 48, 48)), index % 10


if __name__ == "__main__":
    loader = DataLoader(Photos(), batch_size=32, shuffle=True, num_workers=2)
    for _ in range(2):
        for _images, _labels in loader:
            time.sleep(0.02)  # a training step
