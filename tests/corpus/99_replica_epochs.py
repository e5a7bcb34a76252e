import argparse

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sines(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        t = torch.linspace(0, 6.28, 5000)
        return torch.sin(t * (1 + i % 9)).view(50, 100).mean(1), i % 9


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--rank", type=int, default=0)
    p.add_argument("--world-size", type=int, default=2)
    p.add_argument("--epochs", type=int, default=3)
    return p.parse_args()


def main():
    a = parse()
    ds = Sines(300)
    sampler = DistributedSampler(ds, num_replicas=a.world_size, rank=a.rank, shuffle=True, seed=1)
    loader = DataLoader(ds, batch_size=15, sampler=sampler, num_workers=2)
    clf = torch.nn.Linear(50, 9)
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(clf(x), y)
            loss.backward()
        print(a.rank, epoch, loss.item())


if __name__ == "__main__":
    main()
