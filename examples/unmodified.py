"""A training script that does not use unjam: `unjam run --on-error skip examples/unmodified.py`."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        if index == 77:
            raise OSError("photo 77 is truncated")
        time.sleep(0.6 if index == 31 else 0.008)  # one of them is huge
        return torch.rand(3, 32, 32), index % 10


model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(3):
    for images, labels in DataLoader(Photos(), batch_size=8, shuffle=False, num_workers=2):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("trained")
