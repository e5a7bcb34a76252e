import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

g = torch.Generator().manual_seed(0)
centres = torch.tensor([[5.0, 3.4, 1.5, 0.2], [5.9, 2.8, 4.3, 1.3], [6.6, 3.0, 5.6, 2.0]])
X = torch.cat([c + 0.3 * torch.randn(50, 4, generator=g) for c in centres])
y = torch.arange(3).repeat_interleave(50)

dl = DataLoader(TensorDataset(X, y), batch_size=15, shuffle=True)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.Adam(net.parameters(), lr=0.02)
for epoch in range(10):
    for xb, yb in dl:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(xb), yb)
        loss.backward()
        opt.step()
print("accuracy", (net(X).argmax(1) == y).float().mean().item())
