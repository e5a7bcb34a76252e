import os
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

WIDTH = 256


class Records(Dataset):
    """Fixed size float32 records in one file."""

    def __init__(self, path: str):
        self.fd = os.open(path, os.O_RDONLY)
        self.count = os.fstat(self.fd).st_size // (4 * WIDTH)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> torch.Tensor:
        os.lseek(self.fd, i * WIDTH * 4, os.SEEK_SET)
        head = os.read(self.fd, 16)
        body = os.read(self.fd, WIDTH * 4 - 16)
        return torch.from_numpy(np.frombuffer(head + body, dtype=np.float32).copy())


def main() -> None:
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "records.f32")
        np.repeat(np.arange(3000, dtype=np.float32), WIDTH).tofile(path)
        loader = DataLoader(Records(path), batch_size=50, num_workers=2, shuffle=True)
        for epoch in range(3):
            s = 0.0
            for rec in loader:
                s += rec.sum().item()
            print("epoch", epoch, "sum", s)


main()
