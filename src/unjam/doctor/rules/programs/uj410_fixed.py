import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.arange(24.0).view(24, 1)), batch_size=4, shuffle=True)
logs = []
for epoch in range(6):
    for (x,) in loader:
        pass
