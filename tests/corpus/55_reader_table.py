import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset


class LineOffsets(Dataset):
    """Text file with an index of line offsets; one reader per process."""

    def __init__(self, path):
        self.path = path
        self.readers = {os.getpid(): open(path, "rb")}
        self.offsets = []
        pos = 0
        for line in self.readers[os.getpid()]:
            self.offsets.append(pos)
            pos += len(line)

    def __len__(self):
        return len(self.offsets)

    def __getitem__(self, i):
        f = self.readers[os.getpid()]
        f.seek(self.offsets[i])
        return torch.tensor([int(t) for t in f.readline().split()])


def main():
    path = os.path.join(tempfile.mkdtemp(), "lines.txt")
    with open(path, "w") as f:
        for i in range(160):
            print(i, i + 1, i + 2, file=f)
    ds = LineOffsets(path)
    print("first line", ds[0].tolist(), "of", len(ds))
    loader = DataLoader(ds, batch_size=16, num_workers=2)
    for epoch in range(2):
        print(epoch, sum(b.sum().item() for b in loader))


if __name__ == "__main__":
    main()
