import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(0)
train = DataLoader(TensorDataset(torch.arange(40.0).view(40, 1)), batch_size=4, shuffle=True, generator=generator)
check = DataLoader(
    TensorDataset(torch.arange(90.0, 99.0).view(9, 1)), batch_size=4, generator=torch.Generator().manual_seed(1)
)
for epoch in range(2):
    for (x,) in train:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    with torch.no_grad():
        for (x,) in check:
            model(x)
