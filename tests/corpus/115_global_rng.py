import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def augment(img):
    if random.random() < 0.5:
        img = img[:, ::-1]
    k = np.random.randint(0, 9)
    img = np.roll(img, k, axis=0)
    noise = torch.randn(img.shape).numpy() * 0.05
    return img + noise


class Digits(Dataset):
    def __init__(self, n, train=True):
        self.imgs = np.random.RandomState(0).rand(n, 160, 160).astype(np.float32)
        self.train = train

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, i):
        img = self.imgs[i]
        if self.train:
            img = augment(img)
        return torch.from_numpy(np.ascontiguousarray(img)), i % 10


def main(epochs=3):
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    loader = DataLoader(Digits(120), batch_size=12, shuffle=True, num_workers=2)
    net = torch.nn.Sequential(torch.nn.AvgPool1d(16), torch.nn.Flatten(), torch.nn.Linear(1600, 10))
    for epoch in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
