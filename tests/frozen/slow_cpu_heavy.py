import ctypes, os
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def featurize(seed, n=2_500_000):
    h = seed
    for k in range(n):
        h = (h * 1103515245 + 12345 + k) & 0x7FFFFFFF
    return [h % 97, h % 89]

class Hashes(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, i):
        return torch.tensor(featurize(i))

for n, b in enumerate(DataLoader(Hashes(), batch_size=2, num_workers=1)):
    print(n, b.tolist(), flush=True)
