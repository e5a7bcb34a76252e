import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Neighbours(Dataset):
    """Each sample comes with statistics of its neighbourhood."""

    def __init__(self, n=80, k=32):
        self.points = torch.randn(n, 6)
        self.k = k

    def __len__(self):
        return len(self.points)

    def context(self, i):
        near = (self.points - self.points[i]).norm(dim=1).argsort()[:self.k]
        inner = DataLoader(TensorDataset(self.points[near]), batch_size=8, num_workers=1)
        return torch.stack([b.mean(0) for (b,) in inner])

    def __getitem__(self, i):
        return self.points[i], self.context(i)


def main():
    loader = DataLoader(Neighbours(), batch_size=8, num_workers=2)
    lin = torch.nn.Linear(6, 6)
    for epoch in range(2):
        for x, ctx in loader:
            loss = (lin(ctx).mean(1) - x).pow(2).mean()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
