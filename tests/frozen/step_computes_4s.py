import ctypes, os, time
import torch
from torch.utils.data import DataLoader, TensorDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def training_step(w, x):
    t0 = time.time()
    while time.time() - t0 < 4:
        w = torch.tanh(w @ w.T / 400 + x.mean())
    return w

torch.set_num_threads(1)
w = torch.randn(400, 400)
dl = DataLoader(TensorDataset(torch.randn(4000, 10)), batch_size=4, num_workers=2)
for i, (x,) in enumerate(dl):
    w = training_step(w, x)
    print(i, float(w.norm()), flush=True)
