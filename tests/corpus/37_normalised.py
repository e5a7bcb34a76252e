import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Measurements(Dataset):
    def __init__(self, values, scaler=None):
        self.values = values
        self.scaler = scaler
        self._cache = {}

    def fit(self):
        self.scaler = (self.values.mean(0), self.values.std(0))
        return self

    def __getstate__(self):
        # keep pickles small
        return {"values": self.values}

    def __setstate__(self, state):
        self.__init__(state["values"])

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        v = self.values[i]
        if self.scaler is not None:
            v = (v - self.scaler[0]) / self.scaler[1]
        return torch.from_numpy(v.astype(np.float32))


def main():
    raw = np.random.default_rng(8).normal([100, 5, -40], [20, 1, 9], (240, 3))
    loader = DataLoader(Measurements(raw).fit(), batch_size=24, num_workers=2, persistent_workers=True,
                        multiprocessing_context="forkserver")
    for epoch in range(2):
        m = torch.cat([b.mean(0, keepdim=True) for b in loader]).mean(0)
        print(epoch, m.tolist())


if __name__ == "__main__":
    main()
