import ctypes, os, socket, tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Shard(Dataset):
    def __init__(self, rank, fifo):
        self.rank, self.fifo = rank, fifo
    def __len__(self):
        return 100
    def __getitem__(self, i):
        if self.rank == 1 and i == 12:
            open(self.fifo).read()
        return torch.ones(2) * i

def run(rank, port, fifo):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    dist.init_process_group("gloo")
    for b in DataLoader(Shard(rank, fifo), batch_size=4, num_workers=1):
        g = b.mean(0)
        dist.all_reduce(g)
        print(rank, g.tolist(), flush=True)

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    fifo = os.path.join(tempfile.mkdtemp(), "shard1")
    os.mkfifo(fifo)
    mp.get_context("fork").Process(target=run, args=(1, port, fifo), name="rank1").start()
    run(0, port, fifo)
