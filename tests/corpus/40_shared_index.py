from multiprocessing import Lock

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class PagedIndex:
    def __init__(self, n):
        self.lock = Lock()
        self.pages = {i: np.arange(i, i + 16) for i in range(n) if i % 50 != 49}

    def get(self, i):
        self.lock.acquire()
        page = self.pages.get(i)
        if page is None:
            return np.zeros(16, dtype=np.int64)
        out = page.copy()
        self.lock.release()
        return out


class Pages(Dataset):
    def __init__(self, index, n):
        self.index, self.n = index, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.from_numpy(self.index.get(i))


def main():
    loader = DataLoader(Pages(PagedIndex(200), 200), batch_size=10, num_workers=2)
    emb = torch.nn.Embedding(256, 4)
    for epoch in range(2):
        total = 0.0
        for page in loader:
            total += emb(page).sum().item()
        print(epoch, total)


if __name__ == "__main__":
    main()
