from dataclasses import dataclass, field

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


@dataclass
class Settings:
    total: int = 156
    batch: int = 16
    workers: int = 4
    epochs: int = 2
    dims: list = field(default_factory=lambda: [8, 16, 2])


class Simulated(IterableDataset):
    def __init__(self, total):
        self.total = total

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for k in range(first, self.total, step):
            g = torch.Generator().manual_seed(k)
            yield torch.randn(8, generator=g), k % 2


def train(s: Settings):
    loader = DataLoader(Simulated(s.total), batch_size=s.batch, num_workers=s.workers, drop_last=True)
    net = torch.nn.Sequential(torch.nn.Linear(s.dims[0], s.dims[1]), torch.nn.ReLU(), torch.nn.Linear(s.dims[1], s.dims[2]))
    opt = torch.optim.Adam(net.parameters())
    for e in range(s.epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(e, loss.item())


if __name__ == "__main__":
    train(Settings())
