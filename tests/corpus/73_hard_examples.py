import torch
from torch.utils.data import DataLoader, Dataset


class Faces(Dataset):
    def __init__(self, n=210):
        g = torch.Generator().manual_seed(12)
        self.x = torch.randn(n, 20, generator=g)
        self.rejected = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if x.abs().max() > 2.8:
            self.rejected.append(i)
            x = x.clamp(-2.8, 2.8)
        return x


def run_epoch(net, loader):
    for x in loader:
        net(x).mean().backward()


dataset = Faces()
loader = DataLoader(dataset, batch_size=21, num_workers=2, persistent_workers=True)
net = torch.nn.Linear(20, 1)
for epoch in range(3):
    run_epoch(net, loader)
    print(f"epoch {epoch}, {len(set(dataset.rejected))} clipped so far")

with open("/dev/null", "w") as f:
    for i in sorted(set(dataset.rejected)):
        f.write(f"{i}\n")
