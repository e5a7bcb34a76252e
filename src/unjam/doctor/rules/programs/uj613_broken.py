"""Decode every record of a stream in each worker, and keep the worker's share."""

import time

from torch import nn, optim, rand
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def decode(record):
    stop = time.process_time() + 0.02
    while time.process_time() < stop:
        pass
    return rand(8) + record


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for number, sample in enumerate(map(decode, range(100))):
            if number % workers == worker:
                yield sample


if __name__ == "__main__":
    model = nn.Linear(8, 1)
    optimizer = optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        for batch in DataLoader(Stream(), batch_size=4, num_workers=2):
            model(batch).mean().backward()
            optimizer.step()
