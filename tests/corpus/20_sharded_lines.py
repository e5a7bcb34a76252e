import itertools
import os
import tempfile

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class LineReader(IterableDataset):
    def __init__(self, files):
        self.files = files

    def lines(self):
        for name in self.files:
            with open(name) as f:
                yield from f

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for line in itertools.islice(self.lines(), start, None, step):
            yield torch.tensor([int(v) for v in line.split()])


def main():
    folder = tempfile.mkdtemp()
    files = []
    for k in range(5):
        files.append(os.path.join(folder, f"part{k}.txt"))
        with open(files[-1], "w") as f:
            for i in range(83):
                f.write(" ".join(str(k * 83 + i + d) for d in range(6)) + "\n")
    loader = DataLoader(LineReader(files), batch_size=10, num_workers=3)
    for epoch in range(2):
        seen = sum(len(b) for b in loader)
        print("epoch", epoch, "lines", seen)
        assert seen == 5 * 83


if __name__ == "__main__":
    main()
