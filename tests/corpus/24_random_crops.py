import random

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

SEED = 1234


def seed_worker(worker_id):
    np.random.seed(SEED + worker_id)
    random.seed(SEED + worker_id)


class Crops(Dataset):
    def __init__(self, n=96, full=80, crop=48):
        self.imgs = np.random.default_rng(9).integers(0, 255, (n, full, full, 3), dtype=np.uint8)
        self.full, self.crop = full, crop

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, i):
        y, x = np.random.randint(0, self.full - self.crop, 2)
        im = self.imgs[i, y:y + self.crop, x:x + self.crop]
        if random.random() < 0.5:
            im = cv2.flip(im, 1)
        im = cv2.GaussianBlur(im, (3, 3), 0)
        return torch.from_numpy(im.copy()).permute(2, 0, 1).float() / 255


if __name__ == "__main__":
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    loader = DataLoader(Crops(), batch_size=8, num_workers=2, worker_init_fn=seed_worker)
    conv = torch.nn.Conv2d(3, 6, 3, 2)
    opt = torch.optim.SGD(conv.parameters(), lr=0.01)
    for epoch in range(4):
        for x in loader:
            loss = conv(x).relu().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())
