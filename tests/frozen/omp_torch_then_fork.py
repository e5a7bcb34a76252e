import ctypes, os
import torch
from torch.utils.data import DataLoader, TensorDataset, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Whitened(Dataset):
    def __init__(self, n):
        base = torch.randn(2000, 512)
        self.mean = base.mean(0)
        self.cov = (base - self.mean).pow(2).exp().sum(0)   # multi-threaded in the parent
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        x = torch.randn(2000, 512)
        return ((x - self.mean) / self.cov.sqrt()).mean(0)


def use_all_cores(worker_id):
    torch.set_num_threads(2)


if __name__ == "__main__":
    torch.set_num_threads(2)
    ds = Whitened(256)
    dl = DataLoader(ds, batch_size=4, num_workers=1, worker_init_fn=use_all_cores)
    for b in dl:
        print(b.shape, flush=True)
