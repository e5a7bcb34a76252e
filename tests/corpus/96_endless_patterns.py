import itertools

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Patterns(IterableDataset):
    """Endless procedurally generated patterns."""

    def __iter__(self):
        info = get_worker_info()
        rng = np.random.default_rng(info.seed if info else None)
        while True:
            f = rng.uniform(1, 8, 2)
            yy, xx = np.mgrid[0:64, 0:64] / 64
            img = np.sin(f[0] * yy * 6.28) * np.cos(f[1] * xx * 6.28)
            yield torch.from_numpy(img).float(), torch.from_numpy(f).float()


def main(steps_per_epoch=30, epochs=2):
    loader = DataLoader(Patterns(), batch_size=16, num_workers=2)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * 64, 2))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for epoch in range(epochs):
        for img, f in itertools.islice(loader, steps_per_epoch):
            loss = (net(img) - f).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
