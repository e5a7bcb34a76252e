import ctypes, os, signal, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Slowish(Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, i):
        time.sleep(0.3)
        return torch.rand(2)

loader = DataLoader(Slowish(), batch_size=4, num_workers=2)
it = iter(loader)

def freeze_one():
    time.sleep(0.5)
    os.kill(it._workers[0].pid, signal.SIGSTOP)

for n, b in enumerate(it):
    if n == 0:
        threading.Thread(target=freeze_one, daemon=True).start()
    print(n, flush=True)
