import ctypes, multiprocessing as mp, os
import torch
from torch.utils.data import DataLoader, IterableDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Gated(IterableDataset):
    def __init__(self, go):
        self.go = go

    def __iter__(self):
        self.go.wait()
        for i in range(100):
            yield torch.tensor(i)

def main():
    go = mp.Event()
    it = iter(DataLoader(Gated(go), batch_size=10, num_workers=2))
    first = next(it)
    go.set()
    print(first, sum(b.sum() for b in it))

if __name__ == "__main__":
    main()
