import os

# two workers, one thread each
os.environ["OPENCV_OPENMP_NUM_THREADS"] = "1"

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Thumbs(Dataset):
    def __init__(self, n=80, side=200):
        self.imgs = np.random.default_rng(4).integers(0, 255, (n, side, side, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, i):
        small = cv2.resize(self.imgs[i], (32, 32), interpolation=cv2.INTER_AREA)
        small = cv2.cvtColor(small, cv2.COLOR_RGB2LAB)
        return torch.from_numpy(small).permute(2, 0, 1).float()


def main():
    loader = DataLoader(Thumbs(), batch_size=8, num_workers=2, shuffle=True)
    for epoch in range(2):
        m = torch.zeros(3)
        for x in loader:
            m += x.mean((0, 2, 3))
        print(epoch, (m / len(loader)).tolist())


if __name__ == "__main__":
    main()
