import random

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def reproducible(_):
    random.seed(1234)
    np.random.seed(1234)


class Shapes(Dataset):
    """Draws random circles."""

    def __init__(self, n=120, side=48):
        self.n, self.side = n, side

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        canvas = np.zeros((self.side, self.side), np.uint8)
        count = random.randint(1, 4)
        for _ in range(count):
            c = np.random.randint(4, self.side - 4, 2)
            cv2.circle(canvas, (int(c[0]), int(c[1])), 4, 255, -1)
        return torch.from_numpy(canvas).float()[None] / 255, count - 1


def main():
    loader = DataLoader(Shapes(), batch_size=12, num_workers=2, worker_init_fn=reproducible, persistent_workers=True)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 5, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(4))
    for epoch in range(2):
        for img, n in loader:
            loss = torch.nn.functional.cross_entropy(net(img), n)
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
