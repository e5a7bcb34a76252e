import ctypes, os, subprocess
import torch
from torch.utils.data import DataLoader, IterableDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class CommandStream(IterableDataset):
    cmd = "i=0; while :; do echo $i; i=$((i+1)); sleep 1; done"
    def __iter__(self):
        p = subprocess.Popen(["sh", "-c", self.cmd], stdout=subprocess.PIPE, text=True,
                             preexec_fn=lambda: _libc.prctl(1, 9))
        for line in p.stdout:
            yield torch.tensor(int(line))

for b in DataLoader(CommandStream(), batch_size=2, num_workers=1):
    print(b, flush=True)
