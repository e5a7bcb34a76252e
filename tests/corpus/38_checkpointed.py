import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset

registry_lock = threading.RLock()
registry = {"epoch": 0, "scale": 1.0}


def sync_registry(seconds):
    # the remote copy is slow
    with registry_lock:
        time.sleep(seconds)
        registry["epoch"] += 1


def current_scale():
    with registry_lock:
        return registry["scale"]


class Grid(Dataset):
    def __init__(self, side=14):
        self.cells = [(a, b) for a in range(side) for b in range(side)]

    def __len__(self):
        return len(self.cells)

    def __getitem__(self, i):
        a, b = self.cells[i]
        s = current_scale()
        return torch.tensor([a * s, b * s]), torch.tensor(float(a * b))


def main():
    loader = DataLoader(Grid(), batch_size=14, num_workers=2)
    lin = torch.nn.Linear(2, 1)
    worker = threading.Thread(target=sync_registry, args=(6,), daemon=True)
    worker.start()
    time.sleep(0.3)
    for epoch in range(2):
        for x, y in loader:
            loss = (lin(x).squeeze(1) - y).pow(2).mean()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
