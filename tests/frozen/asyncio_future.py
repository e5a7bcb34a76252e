import asyncio, ctypes, os
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class AsyncStore:
    def __init__(self):
        self.pending = {}

    async def fetch(self, key):
        fut = asyncio.get_running_loop().create_future()
        self.pending[key] = fut
        if key % 8 != 7:
            fut.set_result(float(key))
        return await fut

    async def fetch_many(self, keys):
        return await asyncio.gather(*(self.fetch(k) for k in keys))

class AsyncDataset(Dataset):
    def __init__(self):
        self.store = AsyncStore()
    def __len__(self):
        return 64
    def __getitems__(self, idxs):
        vals = asyncio.run(self.store.fetch_many(idxs))
        return [torch.tensor(v) for v in vals]

if __name__ == "__main__":
    for b in DataLoader(AsyncDataset(), batch_size=4, num_workers=1):
        print(b, flush=True)
