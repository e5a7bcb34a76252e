import ctypes, os, subprocess
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def run_tool(cmd):
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE, preexec_fn=lambda: _libc.prctl(1, 9))
    if p.wait() != 0:
        raise RuntimeError(cmd)
    return p.stdout.read()

class ToolOutput(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        n = 10 if i < 6 else 1000000
        lines = run_tool(["seq", "1", str(n)]).split()
        return torch.tensor([float(v) for v in lines[:10]])

if __name__ == "__main__":
    for b in DataLoader(ToolOutput(), batch_size=2, num_workers=2):
        print(b.shape, flush=True)
