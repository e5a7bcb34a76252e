import ctypes, os
import torch
from torch.utils.data import DataLoader, TensorDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

ds = TensorDataset(torch.arange(12.0))
for epoch in range(10**6):
    dl = DataLoader(ds, batch_size=4, num_workers=2, shuffle=True)
    total = sum(float(b.sum()) for (b,) in dl)
    if epoch % 10 == 0:
        print(epoch, total, flush=True)
