import ctypes, os, random, time
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def with_retries(fn, tries=5, backoff=86400):
    for t in range(tries):
        try:
            return fn()
        except OSError:
            time.sleep(backoff * (t + 1))
    raise OSError("gave up")


class Bucket(Dataset):
    def __len__(self):
        return 500

    def read(self, i):
        if i == 21:
            raise OSError("503 slow down")
        return torch.randn(8)

    def __getitem__(self, i):
        return with_retries(lambda: self.read(i))


if __name__ == "__main__":
    for b in DataLoader(Bucket(), batch_size=5, num_workers=2):
        print(b.mean().item(), flush=True)
