import ctypes, os
import numpy as np
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent
if __name__ != "__main__":  # spawned copies too
    _libc.prctl(1, 9)

class UrlQueue(Dataset):
    def __init__(self, q, n):
        self.q, self.n = q, n

    def __len__(self):
        return self.n

    def __getitem__(self, _):
        url = self.q.get()
        return np.array([len(url)])

if __name__ == "__main__":
    ctx = mp.get_context("forkserver")
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    ctx.set_forkserver_preload([os.path.basename(__file__)[:-3]])
    q = ctx.Queue()
    for i in range(10):
        q.put(f"s3://bucket/{i}.jpg")
    dl = DataLoader(UrlQueue(q, 24), batch_size=4, num_workers=2, multiprocessing_context=ctx)
    for b in dl:
        print(b.ravel(), flush=True)
