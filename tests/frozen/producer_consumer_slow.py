import ctypes, multiprocessing as mp, os, time
import numpy as np

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent
if __name__ != "__main__":  # spawned copies too
    _libc.prctl(1, 9)

def produce(q):
    k = 0
    while True:
        time.sleep(2)
        q.put(np.arange(5) + k)
        k += 1

if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    q = ctx.Queue(maxsize=4)
    p = ctx.Process(target=produce, args=(q,), daemon=True, name="producer")
    p.start()
    while True:
        item = q.get()
        print(item.sum(), flush=True)
