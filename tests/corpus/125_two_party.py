import threading, torch
from torch.utils.data import Dataset, DataLoader
class D(Dataset):
    def __init__(self): self.bar = threading.Barrier(2)
    def __len__(self): return 20
    def __getitem__(self, i):
        if i == 9: self.bar.wait()
        return i
if __name__ == "__main__":
    for b in DataLoader(D(), 4): pass
