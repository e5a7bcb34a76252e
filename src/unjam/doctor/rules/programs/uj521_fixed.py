import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

data = TensorDataset(torch.arange(60.0).view(60, 1))
train = DataLoader(Subset(data, range(40)), batch_size=4, shuffle=True)
check = DataLoader(Subset(data, range(40, 60)), batch_size=4)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in train:
    model(x).mean().backward()
    optimizer.step()
with torch.no_grad():
    for (x,) in check:
        model(x)
