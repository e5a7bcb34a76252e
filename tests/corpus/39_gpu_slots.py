import multiprocessing as mp
import os
import signal
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def warm_up(slots, path):
    with slots:
        np.save(path, np.arange(160 * 8, dtype=np.float32).reshape(160, 8))
        time.sleep(60)


class Table(Dataset):
    def __init__(self, path, slots):
        self.array = np.load(path)
        self.slots = slots

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        with self.slots:
            row = self.array[i].copy()
        return torch.from_numpy(row)


if __name__ == "__main__":
    path = f"/tmp/table_{os.getpid()}.npy"
    slots = mp.Semaphore(1)
    helper = mp.Process(target=warm_up, args=(slots, path))
    helper.start()
    while not os.path.exists(path):
        time.sleep(0.05)
    time.sleep(0.2)
    os.kill(helper.pid, signal.SIGTERM)  # table is there, no need to wait
    helper.join()

    loader = DataLoader(Table(path, slots), batch_size=16, shuffle=True, num_workers=2)
    net = torch.nn.Linear(8, 1)
    for epoch in range(2):
        for x in loader:
            net(x).mean().backward()
        print("epoch", epoch)
    os.remove(path)
