import torch
from torch.utils.data import DataLoader, Dataset


class Clouds(Dataset):
    """Rotated point clouds; the rotation is written into a work area."""

    def __init__(self, n=90, points=200):
        self.clouds = torch.randn(n, points, 3, generator=torch.Generator().manual_seed(3))
        self.work = torch.empty(points, 3)

    def __len__(self):
        return len(self.clouds)

    def __getitem__(self, i):
        a = torch.tensor(i * 0.1)
        rot = torch.tensor([[a.cos(), -a.sin(), 0.0], [a.sin(), a.cos(), 0.0], [0.0, 0.0, 1.0]])
        torch.mm(self.clouds[i], rot, out=self.work)
        return {"points": self.work, "id": i}


def main():
    loader = DataLoader(Clouds(), batch_size=9, shuffle=True, num_workers=2)
    mlp = torch.nn.Linear(3, 16)
    for epoch in range(2):
        for batch in loader:
            feats = mlp(batch["points"]).max(1).values
            loss = torch.pdist(feats).mean()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
