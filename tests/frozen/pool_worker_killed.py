import ctypes, multiprocessing as mp, os, signal, time
import numpy as np

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def decode(i):
    if i == 5:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)   # as the OOM killer would
    return np.full((4, 4), i)


class PoolLoader:
    def __init__(self, n, workers=2):
        self.n, self.pool = n, mp.Pool(workers)

    def __iter__(self):
        for img in self.pool.imap(decode, range(self.n)):
            yield img


if __name__ == "__main__":
    for k, img in enumerate(PoolLoader(40)):
        print(k, img.mean(), flush=True)
