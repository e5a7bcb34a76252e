import ctypes, datetime, os, socket, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent
if __name__ != "__main__":  # spawned copies too
    _libc.prctl(1, 9)

def checkpoint(rank, step):
    while rank == 1 and step >= 10:
        time.sleep(30)

def run(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", timeout=datetime.timedelta(days=2))
    ds = TensorDataset(torch.randn(400, 3))
    for step, (x,) in enumerate(DataLoader(ds, batch_size=4, num_workers=1, persistent_workers=True)):
        x.pow(2).sum()
        checkpoint(rank, step)
        dist.barrier()

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    p = mp.get_context("spawn").Process(target=run, args=(1, port), name="rank1", daemon=False)
    p.start()
    run(0, port)
