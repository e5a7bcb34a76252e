import ctypes, multiprocessing as mp, os, time
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Counted(Dataset):
    def __init__(self):
        self.lock, self.n = mp.Lock(), mp.Value("l", 0, lock=False)
    def __len__(self):
        return 3000
    def __getitem__(self, i):
        with self.lock:
            self.n.value += 1
            time.sleep(0.02)
        return torch.tensor([i, self.n.value])

if __name__ == "__main__":
    dl = DataLoader(Counted(), batch_size=8, num_workers=3, persistent_workers=True)
    for epoch in range(1000):
        for n, b in enumerate(dl):
            if n % 10 == 0:
                print("epoch", epoch, "step", n, b[0].tolist(), flush=True)
