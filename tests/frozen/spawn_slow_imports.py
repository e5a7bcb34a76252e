import ctypes, os, time
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent
if __name__ != "__main__":  # spawned copies too
    _libc.prctl(1, 9)

if __name__ == "__mp_main__":
    time.sleep(3)                 # stand-in for a huge import
    import pandas, PIL.Image      # noqa

class Small(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.tensor([i])

if __name__ == "__main__":
    for epoch in range(10**4):
        dl = DataLoader(Small(), batch_size=2, num_workers=2, multiprocessing_context="spawn")
        print(epoch, [b.flatten().tolist() for b in dl], flush=True)
