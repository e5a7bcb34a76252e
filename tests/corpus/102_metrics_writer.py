import threading
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Metrics:
    """Collects values in the training process; a thread prints averages."""

    def __init__(self):
        self.lock = threading.Lock()
        self.values = []
        threading.Thread(target=self._flush, daemon=True).start()

    def add(self, v):
        with self.lock:
            self.values.append(v)

    def _flush(self):
        while True:
            time.sleep(0.2)
            with self.lock:
                if self.values:
                    print("avg %.4f over %d steps" % (sum(self.values) / len(self.values), len(self.values)), flush=True)
                    self.values.clear()


class Eigen(Dataset):
    def __init__(self, n=120):
        self.m = np.random.default_rng(2).standard_normal((n, 40, 40))

    def __len__(self):
        return len(self.m)

    def __getitem__(self, i):
        return np.linalg.eigvalsh(self.m[i] @ self.m[i].T).astype(np.float32)


def main():
    metrics = Metrics()
    loader = DataLoader(Eigen(), batch_size=10, shuffle=True, num_workers=2)
    lin = torch.nn.Linear(40, 1)
    for epoch in range(3):
        for x in loader:
            loss = lin(x).pow(2).mean()
            metrics.add(loss.item())
        print("epoch", epoch)


if __name__ == "__main__":
    main()
