import io
import os
import tarfile
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def pack(path, n=160):
    with tarfile.open(path, "w") as tar:
        for i in range(n):
            b = io.BytesIO()
            np.save(b, np.full((40, 40), i, np.float32))
            info = tarfile.TarInfo(f"patch_{i:04d}.npy")
            info.size = b.tell()
            b.seek(0)
            tar.addfile(info, b)


class TarPatches(Dataset):
    def __init__(self, path):
        self.tar = tarfile.open(path)
        self.members = self.tar.getmembers()

    def __len__(self):
        return len(self.members)

    def __getitem__(self, i):
        raw = self.tar.extractfile(self.members[i]).read()
        return torch.from_numpy(np.load(io.BytesIO(raw)))


def main():
    path = os.path.join(tempfile.mkdtemp(), "patches.tar")
    pack(path)
    loader = DataLoader(TarPatches(path), batch_size=8, shuffle=True, num_workers=2)
    for epoch in range(4):
        level = 0.0
        for p in loader:
            level += p.mean().item()
        print(epoch, level)


if __name__ == "__main__":
    main()
