import os
import queue
import tempfile
import threading

import torch
from torch.utils.data import DataLoader, IterableDataset


class LogTail(IterableDataset):
    def __init__(self, path, depth=32):
        self.path = path
        self.depth = depth
        self.buffer = queue.Queue(maxsize=depth)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with open(self.path) as f:
            for line in f:
                self.buffer.put(line)
        self.buffer.put(None)

    def __iter__(self):
        while True:
            line = self.buffer.get()
            if line is None:
                return
            yield torch.tensor([float(v) for v in line.split(",")])


if __name__ == "__main__":
    fd, path = tempfile.mkstemp(suffix=".log")
    with os.fdopen(fd, "w") as f:
        for i in range(300):
            f.write(f"{i},{i * i % 17},{i % 5}\n")
    loader = DataLoader(LogTail(path), batch_size=15, num_workers=1)
    n = 0
    for batch in loader:
        n += len(batch)
        mean = batch.mean(0)
    print(n, "lines, last mean", mean.tolist())
