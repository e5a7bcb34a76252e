import ctypes, os, random, time
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class SlowDisk(Dataset):
    def __len__(self):
        return 10000
    def __getitem__(self, i):
        time.sleep(random.uniform(1, 4))
        return torch.tensor([i])

if __name__ == "__main__":
    for b in DataLoader(SlowDisk(), batch_size=1, num_workers=2):
        print(b, flush=True)
