import csv
import tempfile

import torch
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset):
    def __init__(self, path):
        with open(path, newline="") as f:
            table = list(csv.reader(f))
        self.header = table[0]
        self.rows = (torch.tensor([float(v) for v in r]) for r in table[1:])

    def __iter__(self):
        yield from self.rows


def write(path, n=240):
    with open(path, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["x", "y", "z"])
        w.writerows([[i, i / 2, i % 9] for i in range(n)])


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile(suffix=".csv") as tmp:
        write(tmp.name)
        loader = DataLoader(Rows(tmp.name), batch_size=20, num_workers=1, persistent_workers=True)
        net = torch.nn.Linear(3, 1)
        for epoch in range(3):
            loss = torch.zeros(())
            for b in loader:
                loss = net(b).pow(2).mean()
                loss.backward()
            print("epoch", epoch, "loss", loss.item())
