import ctypes, os
from concurrent.futures import ThreadPoolExecutor
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="io")


def fetch(part):
    return torch.full((3,), float(part))


def fetch_sample(i):
    futures = [pool.submit(fetch, i * 2 + k) for k in range(2)]
    return torch.cat([f.result() for f in futures])


class Remote(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, i):
        return fetch_sample(i)


if __name__ == "__main__":
    ds = Remote()
    for _ in range(20):
        ds[0]   # sanity check
    for b in DataLoader(ds, batch_size=5, num_workers=1):
        print(b)
