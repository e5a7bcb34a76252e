import torch
from torch.utils.data import DataLoader, Dataset


class Scored(Dataset):
    def __init__(self):
        self.out = open("scores.csv", "w")

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        self.out.write(f"{index},0.5\n")
        return torch.tensor(index)


for batch in DataLoader(Scored(), batch_size=20, num_workers=2):
    pass
