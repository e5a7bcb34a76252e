import ctypes, os, threading, time
import numpy as np
import torch
from torch.utils.data import DataLoader

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Metrics:
    def __init__(self):
        self.lock, self.values = threading.Lock(), []
        threading.Thread(target=self.flush_loop, daemon=True, name="metrics").start()

    def flush_loop(self):
        time.sleep(1)
        with self.lock:
            while len(self.values) < 10**9:    # wait for a full page
                time.sleep(1)

    def log(self, v):
        with self.lock:
            self.values.append(v)

def main():
    m = Metrics()
    data = [np.random.rand(4).astype("float32") for _ in range(64)]
    for epoch in range(100):
        for b in DataLoader(data, batch_size=4, num_workers=2):
            m.log(float(b.mean()))

main()
