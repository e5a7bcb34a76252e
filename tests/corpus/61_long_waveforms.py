import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset


class Snippets(Dataset):
    """One short snippet from each long recording."""

    def __init__(self, root, length=400):
        self.files = [os.path.join(root, f) for f in sorted(os.listdir(root))]
        self.length = length

    def __len__(self):
        return len(self.files) * 20

    def __getitem__(self, i):
        wave = torch.load(self.files[i % len(self.files)])
        start = (i * 7919) % (wave.numel() - self.length)
        return wave[start:start + self.length]


def make(root, n=6, samples=2_000_000):
    for k in range(n):
        torch.save(torch.sin(torch.arange(samples) * (0.01 + k / 100)), os.path.join(root, f"rec{k}.pt"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        make(root)
        loader = DataLoader(Snippets(root), batch_size=None, shuffle=True, num_workers=2)
        conv = torch.nn.Conv1d(1, 2, 9)
        for epoch in range(2):
            for snip in loader:
                conv(snip[None, None]).mean().backward()
            print("epoch", epoch)
