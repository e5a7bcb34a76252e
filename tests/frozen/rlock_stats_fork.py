import ctypes, os, threading, time
import numpy as np
from torch.utils.data import DataLoader, IterableDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Stats:
    def __init__(self):
        self.mu = threading.RLock()
        self.count = 0

    def add(self, n):
        self.mu.acquire()
        try:
            self.count += n
        finally:
            self.mu.release()

    def report_loop(self):
        while True:
            with self.mu:
                time.sleep(0.5)
            time.sleep(0.0005)

stats = Stats()

class Waves(IterableDataset):
    def __iter__(self):
        rng = np.random.default_rng(0)
        for _ in range(10_000):
            stats.add(1)
            yield rng.standard_normal(256).astype("float32")

if __name__ == "__main__":
    threading.Thread(target=stats.report_loop, name="monitor", daemon=True).start()
    time.sleep(0.2)
    dl = DataLoader(Waves(), batch_size=16, num_workers=1, persistent_workers=True)
    total = 0.0
    for i, b in enumerate(dl):
        total += float(b.abs().mean())
