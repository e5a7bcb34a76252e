import ctypes, os
import torch
from torch.utils.data import DataLoader, TensorDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def confirm(msg):
    answer = input(msg + " [y/N] ")
    return answer.lower().startswith("y")

if __name__ == "__main__":
    r, w = os.pipe()
    os.dup2(r, 0)                    # started by a job runner with an open, silent stdin
    ds = TensorDataset(torch.randn(1000, 8), torch.randint(0, 2, (1000,)))
    model = torch.nn.Linear(8, 2)
    for step, (x, y) in enumerate(DataLoader(ds, batch_size=10, num_workers=2, shuffle=True)):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        if step == 20 and not confirm("loss is %.3f, continue?" % loss):
            break
        loss.backward()
