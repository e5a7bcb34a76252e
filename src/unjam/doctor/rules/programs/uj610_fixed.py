import time

import torch
from torch.utils.data import DataLoader, TensorDataset

# stands for a machine with an accelerator: a copy from memory that is not pinned holds the thread
pinned, plain = set(), torch.Tensor.to


def pin(self):
    copy = self.clone()
    pinned.add(copy.data_ptr())
    return copy


def to(self, where, *args, **options):
    if str(where) not in ("cuda", "meta"):
        return plain(self, where, *args, **options)
    time.sleep(0 if self.is_pinned() else 0.01)
    return plain(self, "meta")


torch.cuda.is_available, torch.cuda.synchronize = lambda: True, lambda device=None: None
torch.Tensor.is_pinned = lambda self: self.data_ptr() in pinned
torch.Tensor.pin_memory, torch.Tensor.to = pin, to
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 100_000)), batch_size=4)
for epoch in range(2):
    for (x,) in loader:
        there = x.pin_memory().to("cuda", non_blocking=True)
        model(x[:, :4]).mean().backward()
        optimizer.step()
