# denoising toy: clean wave + noise -> clean wave
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cfg = {"n": 192, "length": 128, "sigma": 0.3, "batch": 16, "epochs": 2, "workers": 2}


class NoisyWaves(Dataset):
    def __init__(self, n, length, sigma, seed=11):
        self.n, self.length, self.sigma = n, length, sigma
        self.rng = np.random.default_rng(seed)
        self.t = np.linspace(0, 1, length)

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        clean = np.sin(2 * np.pi * (1 + idx % 7) * self.t)
        noise = self.rng.normal(0, self.sigma, self.length)
        return (clean + noise).astype(np.float32), clean.astype(np.float32)


ds = NoisyWaves(cfg["n"], cfg["length"], cfg["sigma"])
loader = DataLoader(ds, batch_size=cfg["batch"], shuffle=True, num_workers=cfg["workers"])
net = nn.Sequential(nn.Linear(cfg["length"], 64), nn.Tanh(), nn.Linear(64, cfg["length"]))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)

for epoch in range(cfg["epochs"]):
    running = 0.0
    for noisy, clean in loader:
        loss = (net(noisy) - clean).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    print("epoch %d loss %.4f" % (epoch, running / len(loader)))
