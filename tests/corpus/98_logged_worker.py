import logging
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(processName)s %(levelname)s %(message)s")
log = logging.getLogger("train")


class Curves(Dataset):
    def __init__(self, n=160):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i % 40 == 0:
            info = get_worker_info()
            log.info("sample %d in worker %s", i, info.id if info else "-")
        t = np.linspace(0, 4, 3000)
        y = np.polynomial.Polynomial([i, -1, 0.2, 0.01])(t)
        return torch.from_numpy(np.fft.rfft(y).real[:64].copy()).float()


def main():
    loader = DataLoader(Curves(), batch_size=16, num_workers=2)
    for epoch in range(2):
        peak = max(x.abs().max().item() for x in loader)
        log.info("epoch %d peak %.2f", epoch, peak)


if __name__ == "__main__":
    main()
