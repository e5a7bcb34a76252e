import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.arange(24.0).view(24, 1)), batch_size=4, shuffle=True)
logs = []
for epoch in range(6):
    logs += [open(__file__) for _ in range(4)]
    for (x,) in loader:
        pass
