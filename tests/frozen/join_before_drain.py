import ctypes, os
import multiprocessing as mp
import numpy as np

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def producer(q, shard, n):
    rng = np.random.default_rng(shard)
    for _ in range(n):
        q.put(rng.random((64, 64)))

if __name__ == "__main__":
    q = mp.Queue()
    procs = [mp.Process(target=producer, args=(q, s, 20), name=f"producer-{s}") for s in range(2)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
    data = [q.get() for _ in range(40)]
    print(np.mean(data))
