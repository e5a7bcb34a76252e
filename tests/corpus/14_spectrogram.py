import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectrograms(Dataset):
    def __init__(self, n_clips=120, n_fft=256, frames=20):
        self.n_fft, self.frames = n_fft, frames
        self.signals = np.random.default_rng(5).standard_normal((n_clips, n_fft * frames)).astype(np.float32)
        self.window = np.hanning(n_fft).astype(np.float32)
        # allocated once, saves time in the hot path
        self.out = np.empty((frames, n_fft // 2 + 1), dtype=np.float32)

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, i):
        frames = self.signals[i].reshape(self.frames, self.n_fft) * self.window
        self.out[:] = np.log1p(np.abs(np.fft.rfft(frames, axis=1)))
        return self.out, i % 4


if __name__ == "__main__":
    train_loader = DataLoader(Spectrograms(), batch_size=12, shuffle=True, num_workers=2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(20 * 129, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(3):
        for spec, label in train_loader:
            loss = nn.functional.cross_entropy(net(spec), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"[{epoch}] {loss.item():.3f}")
