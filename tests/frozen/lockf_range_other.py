import ctypes, fcntl, os, subprocess, sys, tempfile
import numpy as np
from torch.utils.data import DataLoader, IterableDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

HOLDER = """
import fcntl, sys, time
f = open(sys.argv[1], 'r+b')
fcntl.lockf(f, fcntl.LOCK_EX)
print('locked', flush=True)
time.sleep(10**6)
"""

class Memmapped(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path, "r+b") as f:
            for k in range(100):
                fcntl.lockf(f, fcntl.LOCK_EX, 80, k * 80)
                f.seek(k * 80)
                yield np.frombuffer(f.read(80), np.float64).copy()
                fcntl.lockf(f, fcntl.LOCK_UN)

def main():
    fd, path = tempfile.mkstemp(suffix=".bin")
    os.write(fd, np.arange(1000.0).tobytes())
    os.close(fd)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE,
                              preexec_fn=lambda: _libc.prctl(1, 9))
    holder.stdout.readline()
    for b in DataLoader(Memmapped(path), batch_size=2, num_workers=1):
        print(b.shape)

main()
