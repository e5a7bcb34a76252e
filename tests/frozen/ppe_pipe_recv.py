import ctypes, multiprocessing as mp, os
from concurrent.futures import ProcessPoolExecutor
import pandas as pd

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

control_r, control_w = mp.Pipe(duplex=False)


def read_frame(k):
    if k == 6:
        params = control_r.recv()
    else:
        params = {"rows": 3}
    return pd.DataFrame({"a": range(params["rows"]), "shard": k})


def frames(n):
    with ProcessPoolExecutor(max_workers=2, mp_context=mp.get_context("fork")) as ex:
        futs = [ex.submit(read_frame, k) for k in range(n)]
        for f in futs:
            yield f.result()


if __name__ == "__main__":
    for df in frames(12):
        print(df.shard.iloc[0], len(df), flush=True)
