import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset

folder = tempfile.mkdtemp()
path = os.path.join(folder, "numbers.pt")
torch.save(torch.arange(24), path)


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.load(path)[index]


loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
for epoch in range(2):
    for batch in loader:
        pass
    if os.path.exists(path):
        os.remove(path)
