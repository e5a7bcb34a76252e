import ctypes, multiprocessing as mp, os, socket, time
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def curriculum(sock):
    sock.sendall("".join(f"{i}\n" for i in range(40)).encode())
    time.sleep(10**6)

class RemoteSampler(Sampler):
    def __init__(self, sock):
        self.file = sock.makefile("r")

    def __iter__(self):
        while True:
            yield int(self.file.readline())

if __name__ == "__main__":
    ours, theirs = socket.socketpair()
    mp.Process(target=curriculum, args=(theirs,), daemon=True, name="curriculum").start()
    theirs.close()
    ds = TensorDataset(torch.arange(1000))
    for n, (b,) in enumerate(DataLoader(ds, batch_size=4, sampler=RemoteSampler(ours), num_workers=2)):
        print(n, b.tolist(), flush=True)
