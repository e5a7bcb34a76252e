import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, n, resolution):
        self.full = torch.rand(n, 3, 64, 64)
        self.resolution = resolution

    def __len__(self):
        return len(self.full)

    def __getitem__(self, i):
        return F.interpolate(self.full[i][None], size=self.resolution)[0]


def train(schedule=(16, 32, 64)):
    ds = Images(96, schedule[0])
    loader = DataLoader(ds, batch_size=12, shuffle=True, num_workers=2, persistent_workers=True)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1))
    for epoch, res in enumerate(schedule):
        ds.resolution = res
        for x in loader:
            net(x).mean().backward()
        print(f"epoch {epoch}: trained at {res}x{res}")


if __name__ == "__main__":
    train()
