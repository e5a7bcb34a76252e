import ctypes, fcntl, multiprocessing as mp, os, tempfile, time
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent
if __name__ != "__main__":  # spawned copies too
    _libc.prctl(1, 9)

LOCKNAME = "cache.lock"

def indexer(folder, up):
    with open(os.path.join(folder, LOCKNAME), "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        up.set()
        time.sleep(10**6)

class Cached(Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __getitem__(self, i):
        with open(os.path.join(self.folder, LOCKNAME), "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            return torch.tensor([i])

    def __len__(self):
        return 16

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    mp.set_forkserver_preload([os.path.basename(__file__)[:-3]])
    folder = tempfile.mkdtemp()
    up = mp.Event()
    mp.Process(target=indexer, args=(folder, up), daemon=True, name="indexer").start()
    up.wait()
    for x in DataLoader(Cached(folder), num_workers=2, multiprocessing_context="forkserver"):
        print(x)
