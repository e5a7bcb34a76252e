import ctypes, multiprocessing as mp, os, time
import numpy as np

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def render(i):
    time.sleep(0.05)
    return i, np.random.default_rng(i).random((32, 32)).mean()

def main():
    with mp.Pool(2) as pool:
        for n, (i, m) in enumerate(pool.imap_unordered(render, range(10**5), chunksize=4)):
            if n % 20 == 0:
                print(n, i, round(m, 3), flush=True)

if __name__ == "__main__":
    main()
