import torch
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(0)
images, masks = (TensorDataset(torch.arange(24.0).view(24, 1)) for _ in range(2))
first = DataLoader(images, batch_size=4, shuffle=True, generator=generator)
second = DataLoader(masks, batch_size=4, shuffle=True, generator=generator)
for epoch in range(2):
    for image, mask in zip(first, second):
        pass
