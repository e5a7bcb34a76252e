import torch
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 24

    def read(self, index):
        return torch.tensor([float(index)])

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.read(index)
        return self.cache[index] + torch.randn(1)


model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Cached(), batch_size=4, shuffle=True)
for epoch in range(3):
    for x in loader:
        model(x).mean().backward()
        optimizer.step()
