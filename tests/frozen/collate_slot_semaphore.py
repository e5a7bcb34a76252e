import ctypes, os
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class SlotCollate:
    """Writes batches into a ring of shared slots."""

    def __init__(self, slots, shape):
        self.free = mp.BoundedSemaphore(slots)
        self.next = mp.Value("i", 0)
        self.buf = torch.zeros(slots, *shape).share_memory_()

    def __call__(self, samples):
        self.free.acquire()
        with self.next:
            k = self.next.value
            self.next.value = (k + 1) % len(self.buf)
        torch.stack(samples, out=self.buf[k])
        return k

class Rand(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        return torch.full((5,), float(i))

if __name__ == "__main__":
    ring = SlotCollate(3, (4, 5))
    for slot in DataLoader(Rand(), batch_size=4, num_workers=1, collate_fn=ring):
        print(slot, ring.buf[slot].mean().item(), flush=True)
