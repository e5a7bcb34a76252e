# each worker unpacks its archive by a subprocess on first use (7 s), then reads
import subprocess, torch
from torch.utils.data import Dataset, DataLoader
class D(Dataset):
    ready = False
    def __len__(self): return 100
    def __getitem__(self, i):
        if not self.ready: subprocess.run(["sh", "-c", "sleep 7"], check=True, capture_output=True); self.ready = True
        return torch.tensor(i)
if __name__ == "__main__":
    for b in DataLoader(D(), 10, num_workers=2): pass
