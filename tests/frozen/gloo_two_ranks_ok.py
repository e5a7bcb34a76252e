import ctypes, os, socket, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def run(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ds = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), 0.01)
    sampler = DistributedSampler(ds)
    dl = DataLoader(ds, batch_size=16, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(10**5):
        sampler.set_epoch(epoch)
        for x, y in dl:
            opt.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            time.sleep(0.05)
        if rank == 0:
            print(epoch, float(loss), flush=True)

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    mp.get_context("fork").Process(target=run, args=(1, port), name="rank1").start()
    run(0, port)
