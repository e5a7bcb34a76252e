import ctypes, multiprocessing, os
import numpy as np

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class DecodeError(Exception):
    def __init__(self, path, offset):
        super().__init__(f"{path} broken at byte {offset}")
        self.path, self.offset = path, offset

def parse(path):
    if path.endswith("13.npy"):
        raise DecodeError(path, 128)
    return np.zeros(8)

def batches(paths, pool, size=5):
    for k in range(0, len(paths), size):
        yield np.stack(pool.map(parse, paths[k:k + size]))

if __name__ == "__main__":
    files = [f"/data/{i}.npy" for i in range(30)]
    with multiprocessing.Pool(2) as pool:
        for b in batches(files, pool):
            print(b.shape, flush=True)
