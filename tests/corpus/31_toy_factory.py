import math

import torch
from torch.utils.data import DataLoader, Dataset


def make_loader(fn, n, batch_size, workers=2):
    class Curve(Dataset):
        def __len__(self):
            return n

        def __getitem__(self, i):
            x = i / n * 6
            return torch.tensor([x]), torch.tensor([fn(x)])

    return DataLoader(Curve(), batch_size=batch_size, shuffle=True, num_workers=workers)


def main():
    loader = make_loader(lambda x: math.sin(x) + 0.3 * x, n=320, batch_size=32)
    net = torch.nn.Sequential(torch.nn.Linear(1, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for epoch in range(3):
        for x, y in loader:
            loss = (net(x) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
