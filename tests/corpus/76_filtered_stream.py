import math

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Filtered(IterableDataset):
    def __init__(self, values, keep):
        self.values = values
        self.keep = keep

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        info = get_worker_info()
        wid, nw = (info.id, info.num_workers) if info else (0, 1)
        for v in self.values[wid::nw]:
            if self.keep(v):
                yield torch.tensor([v, math.sqrt(v)])


def by_three(v):
    return v % 3 == 0


def main():
    loader = DataLoader(Filtered(list(range(400)), by_three), batch_size=10, num_workers=2)
    lin = torch.nn.Linear(1, 1)
    opt = torch.optim.SGD(lin.parameters(), lr=1e-7)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-6, total_steps=2 * len(loader) + 1)
    for epoch in range(2):
        running = 0.0
        for b in loader:
            loss = (lin(b[:, :1]) - b[:, 1:]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            running += loss.item()
        print("epoch", epoch, "mean loss", running / len(loader))


if __name__ == "__main__":
    main()
