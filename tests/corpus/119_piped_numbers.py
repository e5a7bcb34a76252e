import subprocess, torch
from torch.utils.data import IterableDataset, DataLoader
class Lines(IterableDataset):
    def __init__(self, cmd): self.p = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True)
    def __iter__(self):
        for l in self.p.stdout: yield int(l)
if __name__ == "__main__":
    tot = 0
    for b in DataLoader(Lines(["seq", "1", "5000"]), 50, num_workers=1): tot += b.sum().item()
    assert tot == 5000 * 5001 // 2
