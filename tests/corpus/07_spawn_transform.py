from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    size: int = 96
    batch_size: int = 12
    workers: int = 2
    epochs: int = 1
    scale: float = 255.0


class Patches(Dataset):
    def __init__(self, size, transform=None):
        self.data = torch.randint(0, 256, (size, 3, 16, 16), dtype=torch.uint8)
        self.transform = transform

    def __len__(self):
        return self.data.shape[0]

    def __getitem__(self, i):
        x = self.data[i]
        return self.transform(x) if self.transform else x


def run(cfg: Config):
    ds = Patches(cfg.size, transform=lambda x: x.float() / cfg.scale)
    loader = DataLoader(ds, cfg.batch_size, shuffle=True, num_workers=cfg.workers, multiprocessing_context="spawn")
    conv = torch.nn.Conv2d(3, 4, 3)
    for epoch in range(cfg.epochs):
        for x in loader:
            out = conv(x).mean()
        print(epoch, out.item())


if __name__ == "__main__":
    run(Config())
