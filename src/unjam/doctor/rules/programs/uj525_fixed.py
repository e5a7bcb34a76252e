import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Mixed(Sampler):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(torch.randperm(self.length).tolist())


loader = DataLoader(TensorDataset(torch.arange(24.0).view(24, 1)), batch_size=4, sampler=Mixed(24))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
