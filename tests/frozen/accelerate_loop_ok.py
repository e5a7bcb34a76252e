import ctypes, os
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def main():
    torch.set_num_threads(1)
    acc = Accelerator(cpu=True)
    net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    opt = torch.optim.SGD(net.parameters(), 0.01)
    dl = DataLoader(TensorDataset(torch.randn(4096, 32), torch.randn(4096, 1)), batch_size=64, num_workers=1)
    net, opt, dl = acc.prepare(net, opt, dl)
    for epoch in range(10**6):
        for x, y in dl:
            loss = (net(x) - y).pow(2).mean()
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
        print(epoch, loss.item(), flush=True)

if __name__ == "__main__":
    main()
