import ctypes, multiprocessing as mp, os, socket, tempfile, time
from multiprocessing.connection import Client
import torch
from torch.utils.data import DataLoader, TensorDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent
if __name__ != "__main__":  # spawned copies too
    _libc.prctl(1, 9)

def param_server(path, up):
    s = socket.socket(socket.AF_UNIX)
    s.bind(path)
    s.listen(8)
    up.set()
    while True:
        time.sleep(100)

class Connect:
    def __init__(self, path):
        self.path = path

    def __call__(self, worker_id):
        global conn
        conn = Client(self.path, family="AF_UNIX", authkey=b"secret")

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    mp.set_forkserver_preload([os.path.basename(__file__)[:-3]])
    path, up = os.path.join(tempfile.mkdtemp(), "ps.sock"), mp.Event()
    mp.Process(target=param_server, args=(path, up), daemon=True, name="param-server").start()
    up.wait()
    ds = TensorDataset(torch.arange(100.0))
    dl = DataLoader(ds, 10, num_workers=2, worker_init_fn=Connect(path), multiprocessing_context="forkserver")
    for (b,) in dl:
        print(b)
