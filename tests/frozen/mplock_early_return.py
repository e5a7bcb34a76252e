import ctypes, multiprocessing as mp, os
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class SharedCounterDataset(Dataset):
    def __init__(self):
        self.lock = mp.Lock()
        self.seen = mp.Value("i", 0, lock=False)

    def __len__(self):
        return 200

    def __getitem__(self, i):
        x = torch.randn(4)
        self.lock.acquire()
        if i == 5:               # known bad sample
            return torch.zeros(4)
        self.seen.value += 1
        self.lock.release()
        return x

if __name__ == "__main__":
    ds = SharedCounterDataset()
    loader = DataLoader(ds, batch_size=4, num_workers=2)
    for n, xb in enumerate(loader):
        print("batch", n, xb.shape, flush=True)
