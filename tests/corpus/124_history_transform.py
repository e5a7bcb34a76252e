import numpy as np, torch
from torch.utils.data import Dataset, DataLoader
class Stats:
    def __init__(self): self.hist = []
    def __call__(self, x): self.hist.append(x * 1.0); return x
class D(Dataset):
    def __init__(self): self.t = [Stats()]
    def __len__(self): return 4000
    def __getitem__(self, i): return torch.from_numpy(self.t[0](np.ones(20000, np.float32) * i)).mean()
if __name__ == "__main__":
    for e in range(4):
        for b in DataLoader(D(), 16, num_workers=2, persistent_workers=True): pass
