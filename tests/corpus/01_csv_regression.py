"""Small regression on a sensor log."""
import argparse
import csv
import os
import random
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_log(folder, rows):
    path = os.path.join(folder, "sensors.csv")
    rng = random.Random(3)
    with open(path, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["t", "h", "p", "y"])
        for i in range(rows):
            t, h, p = rng.gauss(20, 4), rng.random(), rng.gauss(1013, 8)
            y = 0.3 * t - 2 * h + 0.01 * p
            w.writerow([f"{t:.3f}", "n/a" if i == 137 else f"{h:.3f}", f"{p:.1f}", f"{y:.4f}"])
    return path


class SensorLog(Dataset):
    def __init__(self, path):
        with open(path, newline="") as f:
            self.rows = list(csv.DictReader(f))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        x = torch.tensor([float(row[k]) for k in ("t", "h", "p")])
        return x, torch.tensor([float(row["y"])])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as d:
        loader = DataLoader(SensorLog(write_log(d, 200)), batch_size=16, shuffle=True, num_workers=args.workers)
        model = nn.Linear(3, 1)
        opt = torch.optim.SGD(model.parameters(), lr=1e-7)
        for epoch in range(args.epochs):
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            print(epoch, loss.item())


if __name__ == "__main__":
    main()
