import multiprocessing as mp, os, time, torch
from torch.utils.data import Dataset, DataLoader
class D(Dataset):
    def __init__(self): self.cnt = mp.Value("i", 0)
    def __len__(self): return 5000
    def __getitem__(self, i):
        x = torch.rand(200, 200); t = time.time()
        while time.time() - t < .015: x = x @ x / 100
        with self.cnt.get_lock():
            self.cnt.value += 1
            with open(os.devnull, "w") as f: f.write(str(self.cnt.value)); f.flush(); time.sleep(.004)
        return x, i
if __name__ == "__main__":
    for b in DataLoader(D(), 8, num_workers=2): pass
