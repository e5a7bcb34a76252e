import ctypes, os, subprocess
import torch
from torch.utils.data import DataLoader, IterableDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.rand(4)

def upload(step):
    cmd = "sleep infinity"
    out = subprocess.check_output(["sh", "-c", "exec " + cmd], preexec_fn=lambda: _libc.prctl(1, 9))
    print("uploaded", step, out)

for step, b in enumerate(DataLoader(Stream(), batch_size=4, num_workers=1)):
    if step == 30:
        upload(step)
