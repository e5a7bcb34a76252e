import ctypes, os
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class PipeFed(Dataset):
    """Samples come through a pipe filled by 'somebody else'."""

    def __init__(self):
        self.rfd, self.wfd = os.pipe()

    def __len__(self):
        return 10

    def __getitem__(self, i):
        raw = os.read(self.rfd, 4 * 8)
        return torch.frombuffer(bytearray(raw), dtype=torch.float32)

if __name__ == "__main__":
    it = iter(DataLoader(PipeFed(), num_workers=3, batch_size=None))
    first = next(it)
    print(first)
