"""The cost of transferring a batch between processes: torch's time divided by unjam's.

The dataset returns existing samples, so that fetching, collating and the transfer are measured. For large batches the table also shows
a plain memcpy of the same bytes.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.utils.data

import unjam
from harness import interleave, table, verdict


class Ready(torch.utils.data.Dataset):
    """Existing samples."""

    def __init__(self, samples, length):
        self.samples = samples
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.samples[index % len(self.samples)]


def tensors(count, elements, dtype):
    return [torch.zeros(elements, dtype=dtype) + n for n in range(count)]


def keep(batch):
    return batch


# name: (batch size, samples, collate, batches per epoch, goal, compare with memcpy)
CASES = {
    "64 × 32 B": (64, lambda: tensors(64, 8, torch.float32), None, 600, 4.0),
    "256 × 3 KB": (256, lambda: tensors(256, 768, torch.float32), None, 300, 2.0),
    "64 × 150 KB": (64, lambda: tensors(64, 150_528, torch.uint8), None, 200, 6.0),
    "64 × 600 KB": (64, lambda: tensors(64, 150_528, torch.float32), None, 80, 5.0),
    "16 × 4 MB": (16, lambda: tensors(16, 1 << 20, torch.float32), None, 40, 4.5),
    "dict of 20 tensors": (32, lambda: [{f"k{i}": torch.full((64,), float(i)) for i in range(20)}] * 8, None, 200, 1.0),
    "strings and one tensor": (
        64,
        lambda: [(f"name of sample {i}", torch.ones(256)) for i in range(64)],
        None,
        300,
        1.0,
    ),
    "numpy object": (16, lambda: [np.arange(4096, dtype=np.float64) for _ in range(16)], keep, 300, 1.0),
}
MEMCPY = ("64 × 150 KB", "64 × 600 KB", "16 × 4 MB")


def per_batch(loader, warm):
    """Seconds per batch in the steady state of one epoch."""
    iterator = iter(loader)
    for _ in range(warm):
        next(iterator)
    start, count = time.perf_counter(), 0
    for batch in iterator:
        count += 1
        last = time.perf_counter()
    del batch
    return (last - start) / count  # without stopping the workers


def memcpy(nbytes):
    source, target = torch.zeros(nbytes, dtype=torch.uint8), torch.empty(nbytes, dtype=torch.uint8)
    torch.set_num_threads(1)
    for _ in range(3):
        target.copy_(source)
    start = time.perf_counter()
    for _ in range(10):
        target.copy_(source)
    return (time.perf_counter() - start) / 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", help="only the cases whose name contains this")
    arguments = parser.parse_args()
    rows = []
    for name, (size, make, collate, batches, goal) in CASES.items():
        if arguments.case and arguments.case not in name:
            continue
        dataset = Ready(make(), size * batches)
        row = [name]
        for workers in (1, 2):
            options = dict(batch_size=size, num_workers=workers, collate_fn=collate)
            warm = 10 if batches > 40 else 6
            runs = {
                "torch": lambda o=options, w=warm: per_batch(torch.utils.data.DataLoader(dataset, **o), w),
                "unjam": lambda o=options, w=warm: per_batch(unjam.DataLoader(dataset, **o), w),
            }
            if name in MEMCPY:
                nbytes = size * dataset.samples[0].nbytes
                runs["memcpy"] = lambda n=nbytes: memcpy(n)
            took = interleave(runs, arguments.rounds)
            row += [f"{took['torch'] * 1e3:.2f}", f"{took['unjam'] * 1e3:.2f}"]
            row.append(verdict(took["torch"] / took["unjam"], goal))
            if workers == 1:
                row.append(verdict(took["unjam"] / took["memcpy"], 1.3, at_least=False) if name in MEMCPY else "")
        rows.append(row)
    columns = ["batch", "torch ms", "unjam ms", "1 worker: ratio", "unjam / memcpy", "torch ms", "unjam ms"]
    table("Transport, ms per batch", [*columns, "2 workers: ratio"], rows)


if __name__ == "__main__":
    main()
