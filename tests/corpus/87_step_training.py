import time

import torch
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n=500):
        self.a = torch.randn(n, 12)

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        x = self.a[i]
        return x, x.roll(1)


loader = DataLoader(Pairs(), batch_size=16, shuffle=True, num_workers=2)
model = torch.nn.Linear(12, 12)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
t0 = time.time()
for step in range(60):
    x, y = next(iter(loader))
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, round(loss.item(), 4), f"{time.time() - t0:.1f}s")
