import ctypes, os, subprocess
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

DECODER = ["tail", "-f", "/dev/null"]


class Videos(Dataset):
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def decode(self, name):
        subprocess.run(DECODER, preexec_fn=lambda: _libc.prctl(1, 9), check=True)
        return torch.zeros(3, 4, 4)

    def __getitem__(self, i):
        if self.names[i].endswith("7.mp4"):
            return self.decode(self.names[i])
        return torch.ones(3, 4, 4)


loader = DataLoader(Videos([f"clip{i:03}.mp4" for i in range(40)]), batch_size=4, num_workers=2)
for n, clip in enumerate(loader):
    print(n, clip.sum().item(), flush=True)
