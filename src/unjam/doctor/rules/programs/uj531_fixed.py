import torch
from torch.utils.data import DataLoader, StackDataset, TensorDataset

images, masks = (TensorDataset(torch.arange(24.0).view(24, 1)) for _ in range(2))
pairs = DataLoader(StackDataset(images, masks), batch_size=4, shuffle=True)
for epoch in range(2):
    for image, mask in pairs:
        pass
