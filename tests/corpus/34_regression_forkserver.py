import multiprocessing as mp
import numpy as np
import torch
from torch.utils.data import Dataset, DataLoader

mp.set_start_method("forkserver", force=True)

class Houses(Dataset):
    def __init__(self, n=250):
        r = np.random.RandomState(3)
        self.area = r.uniform(40, 200, n).astype(np.float32)
        self.rooms = r.randint(1, 7, n).astype(np.float32)
        self.price = 2.1 * self.area + 9 * self.rooms + r.randn(n).astype(np.float32)
    def __len__(self):
        return len(self.area)
    def __getitem__(self, k):
        return np.array([self.area[k], self.rooms[k]]), self.price[k]

train_dl = DataLoader(Houses(), batch_size=25, shuffle=True, num_workers=2)
lin = torch.nn.Linear(2, 1)
opt = torch.optim.Adam(lin.parameters(), lr=.1)
for ep in range(2):
    for a, p in train_dl:
        loss = ((lin(a).squeeze() - p) ** 2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    print('ep', ep, loss.item())
