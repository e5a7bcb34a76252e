"""A dataset with a 400 MB array and a lambda, 4 workers: time to the first batch, and the workers' memory."""

import sys

import numpy as np
from common import clock, loader_class, report, workers_memory
from torch.utils.data import Dataset

ROWS = 100_000


class Table(Dataset):
    def __init__(self, *, with_lambda):
        self.rows = np.ones((ROWS, 1024), dtype=np.float32)
        self.transform = (lambda row: row) if with_lambda else None

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        row = self.rows[index]
        return row if self.transform is None else self.transform(row)


def first_batch(loader):
    start = clock()
    iterator = iter(loader)
    batch = next(iterator)
    took = clock() - start
    del batch
    for _ in range(200):
        next(iterator)
    return took, workers_memory()


if __name__ == "__main__":
    method = sys.argv[2] if len(sys.argv) > 2 else None
    table = Table(with_lambda=method != "spawn")
    loader = loader_class()(table, batch_size=64, shuffle=True, num_workers=4, multiprocessing_context=method)
    cold, _ = first_batch(loader)
    warm, memory = first_batch(loader)
    copies = memory / table.rows.nbytes
    text = f"first batch {cold:.1f} s, next epoch {warm:.2f} s, workers {memory / 1e6:.0f} MB"
    report(ok=True, text=text, cold=cold, warm=warm, memory=memory, copies=copies)
