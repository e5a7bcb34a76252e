import ctypes, multiprocessing as mp, os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def log_shipper(r, w):
    os.close(w)
    time.sleep(10**6)    # should read r

def train(dl):
    for epoch in range(10**6):
        for i, (x,) in enumerate(dl):
            print(f"epoch {epoch} step {i} loss {float(x.mean()):.4f} " + "." * 200, flush=True)

if __name__ == "__main__":
    r, w = os.pipe()
    mp.Process(target=log_shipper, args=(r, w), daemon=True, name="log-shipper").start()
    os.dup2(w, 1)
    train(DataLoader(TensorDataset(torch.randn(4000, 4)), batch_size=2, num_workers=2, persistent_workers=True))
