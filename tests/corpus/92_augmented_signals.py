# electrode recordings: random gain, damaged channels replaced
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Electrodes(Dataset):
    def __init__(self, n=140, length=64):
        rng = np.random.default_rng(77)
        self.signals = [rng.standard_normal(length) for _ in range(n)]
        for bad in (12, 80, 81):
            self.signals[bad] = self.signals[bad][:40]
        self.length = length
        self.gain_rng = np.random.RandomState(5)

    def __len__(self):
        return len(self.signals)

    def _prepare(self, sig):
        if len(sig) != self.length:
            raise ValueError("short recording")
        return sig * self.gain_rng.uniform(0.8, 1.2) + self.gain_rng.normal(0, 0.01, self.length)

    def __getitem__(self, i):
        try:
            x = self._prepare(self.signals[i])
        except ValueError:
            x = self._prepare(self.signals[0])
        return torch.from_numpy(x).float()


def main():
    loader = DataLoader(Electrodes(), batch_size=14, num_workers=2, shuffle=True)
    enc = torch.nn.Linear(64, 8)
    for epoch in range(2):
        for x in loader:
            enc(x).pow(2).mean().backward()
        print("epoch", epoch, enc.weight.grad.norm().item())


if __name__ == "__main__":
    main()
