import ctypes, multiprocessing as mp, os
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

NUM_WORKERS = 2
sync = mp.Barrier(NUM_WORKERS + 1)


def init(worker_id):
    torch.manual_seed(worker_id)
    sync.wait()


class Noise(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, i):
        return torch.randn(4)


dl = DataLoader(Noise(), batch_size=10, num_workers=NUM_WORKERS, worker_init_fn=init)
print(len(dl))
for b in dl:
    print(b.std())
