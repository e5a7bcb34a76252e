import ctypes, os, sys
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent
if __name__ != "__main__":  # spawned copies too
    _libc.prctl(1, 9)

class Xor(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        a, b = i & 1, (i >> 1) & 1
        return torch.tensor([a, b], dtype=torch.float32), torch.tensor([a ^ b], dtype=torch.float32)

def step(model, x, y, n):
    loss = (model(x) - y).abs().mean()
    if n == 5:
        breakpoint()
    loss.backward()
    return loss

if __name__ == "__main__":
    r, w = os.pipe()
    sys.stdin = os.fdopen(r)
    model = torch.nn.Linear(2, 1)
    for n, (x, y) in enumerate(DataLoader(Xor(), 4, num_workers=1, multiprocessing_context="spawn")):
        step(model, x, y, n)
