import ctypes, os
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent
if __name__ != "__main__":  # spawned copies too
    _libc.prctl(1, 9)

class MultiFile(Dataset):
    executor = None

    def _read(self, k):
        return np.full(3, k)

    def _read_pair(self, i):
        left = self.executor.submit(self._read, 2 * i)
        right = self._read(2 * i + 1)
        return np.concatenate([left.result(), right])

    def __getitem__(self, i):
        if self.executor is None:
            self.executor = ThreadPoolExecutor(1, thread_name_prefix="load")
        return self.executor.submit(self._read_pair, i).result()

    def __len__(self):
        return 12

if __name__ == "__main__":
    for b in DataLoader(MultiFile(), batch_size=3, num_workers=1, multiprocessing_context="spawn"):
        print(b.shape)
