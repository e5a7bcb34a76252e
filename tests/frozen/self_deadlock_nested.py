import ctypes, os, threading
import numpy as np
import torch
import torch.utils.data as data

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class LRUImageStore:
    def __init__(self, cap=4):
        self.cap, self.items, self._lock = cap, {}, threading.Lock()

    def evict(self):
        with self._lock:
            while len(self.items) > self.cap:
                self.items.pop(next(iter(self.items)))

    def put(self, key, value):
        self.items[key] = value
        if len(self.items) > self.cap:
            self.evict()


class Tiles(data.Dataset):
    def __init__(self):
        self.store = LRUImageStore()

    def __len__(self):
        return 40

    def __getitem__(self, idx):
        with self.store._lock:
            if idx not in self.store.items:
                self.store.put(idx, np.full((8, 8), idx, dtype=np.uint8))
            return torch.from_numpy(self.store.items[idx])


def train():
    dl = data.DataLoader(Tiles(), batch_size=2, num_workers=2, persistent_workers=True, prefetch_factor=2)
    for epoch in range(3):
        for step, t in enumerate(dl):
            print(epoch, step, t.shape, flush=True)


if __name__ == "__main__":
    train()
