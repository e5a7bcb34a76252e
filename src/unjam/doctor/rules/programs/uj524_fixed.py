import torch
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self):
        self.data = torch.arange(1.0, 25.0).view(24, 1)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return self.data[index] * 0.5


loader = DataLoader(Signals(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch in loader:
        pass
