import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

weights = [1.0] * 20 + [5.0] * 4
sampler = WeightedRandomSampler(weights, 24, replacement=False)
loader = DataLoader(TensorDataset(torch.arange(24.0).view(24, 1)), batch_size=4, sampler=sampler)
for epoch in range(2):
    for (x,) in loader:
        pass
