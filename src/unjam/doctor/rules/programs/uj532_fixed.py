import torch
from torch.utils.data import DataLoader, Dataset


class Plain(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Transformed(Dataset):
    def __init__(self, inner, transform):
        self.inner, self.transform = inner, transform

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.transform(self.inner[index])


def double(x):
    return 2 * x


for batch in DataLoader(Transformed(Plain(), double), batch_size=4):
    pass
