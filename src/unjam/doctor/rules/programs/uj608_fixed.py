import tempfile

import torch
from torch.utils.data import DataLoader, Dataset

path = tempfile.mkstemp()[1]
with open(path, "w") as file:
    file.writelines(f"{row} {row + 1}\n" for row in range(60_000))


class Rows(Dataset):
    def __init__(self):
        self.rows = [line.split() for line in open(path)][:64]

    def __len__(self):
        return 64

    def __getitem__(self, index):
        rows = self.rows
        return torch.tensor([float(one) for one in rows[index]])


for batch in DataLoader(Rows(), batch_size=8):
    pass
