import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

torch.manual_seed(3)


class Rare(Dataset):
    def __init__(self, n=240):
        self.label = (torch.arange(n) % 12 == 0).long()
        self.x = torch.randn(n, 48, 48) + self.label[:, None, None]

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return torch.linalg.svdvals(self.x[i]), self.label[i]


ds = Rare()
counts = torch.bincount(ds.label).float()
weights = (1 / counts)[ds.label]
loader = DataLoader(ds, batch_size=20, sampler=WeightedRandomSampler(weights, num_samples=len(ds)), num_workers=2)
model = torch.nn.Linear(48, 2)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    pos = 0
    for s, y in loader:
        loss = torch.nn.functional.cross_entropy(model(s), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        pos += y.sum().item()
    print(f"epoch {epoch}: loss {loss.item():.3f}, {pos / len(ds):.0%} positives")
