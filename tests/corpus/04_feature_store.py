import threading
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class FeatureStore:
    """Keeps per-user statistics fresh while we train."""

    def __init__(self, n):
        self.table = np.random.rand(n, 8).astype("float32")
        self.guard = threading.Lock()
        self.started = threading.Event()
        threading.Thread(target=self._refresh, daemon=True).start()
        self.started.wait()

    def _refresh(self):
        with self.guard:
            while True:
                self.table *= 0.999
                self.started.set()
                time.sleep(0.2)

    def lookup(self, key):
        with self.guard:
            return self.table[key].copy()


class Clicks(Dataset):
    def __init__(self, store, n):
        self.store = store
        self.users = np.random.randint(0, len(store.table), n)
        self.labels = np.random.randint(0, 2, n)

    def __len__(self):
        return len(self.users)

    def __getitem__(self, i):
        return self.store.lookup(self.users[i]), self.labels[i]


if __name__ == "__main__":
    store = FeatureStore(1000)
    loader = DataLoader(Clicks(store, 256), batch_size=32, shuffle=True, num_workers=2)
    w = torch.zeros(8, requires_grad=True)
    for epoch in range(2):
        for feats, y in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(feats @ w, y.float())
            loss.backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
                w.grad.zero_()
        print("epoch", epoch, loss.item())
