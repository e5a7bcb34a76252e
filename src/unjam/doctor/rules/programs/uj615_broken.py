"""Give each worker its share of the files, and there is one file."""

import time

from torch import nn, optim, rand
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for _ in self.files[worker::workers]:
            for record in range(120):
                time.sleep(0.02)
                yield rand(8) + record


if __name__ == "__main__":
    model = nn.Linear(8, 1)
    optimizer = optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        for batch in DataLoader(Stream(["part-0"]), batch_size=4, num_workers=2):
            model(batch).mean().backward()
            optimizer.step()
