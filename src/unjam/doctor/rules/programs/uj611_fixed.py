import time

import torch
from torch.utils.data import DataLoader, Dataset

# stands for a machine with an accelerator: it computes 10 ms for each step, and `item` waits for that
busy_until = 0.0


class Stream:
    def synchronize(self):
        pass

    def query(self):
        return time.monotonic() >= busy_until


plain = torch.Tensor.item


def item(self):
    if not self.is_meta:
        return plain(self)
    time.sleep(max(0.0, busy_until - time.monotonic()))
    return 0.0


torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
torch.cuda.Stream, torch.cuda.current_stream, torch.Tensor.item = Stream, lambda device=None: Stream(), item


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.zeros(4)


model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 0.0
for epoch in range(2):
    for x in DataLoader(Slow(), batch_size=4):
        model(x).mean().backward()
        optimizer.step()
        busy_until = max(busy_until, time.monotonic()) + 0.01
        loss = torch.zeros((), device="meta")

    total += loss.item()
