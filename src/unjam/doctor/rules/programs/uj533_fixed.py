import torch
from torch.utils.data import DataLoader, Dataset

SCALE = 1.0


class Scaled(Dataset):
    def __init__(self):
        self.scale = SCALE

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.tensor(index * self.scale)


if __name__ == "__main__":
    SCALE = 2.0
    for batch in DataLoader(Scaled(), batch_size=4, num_workers=1, multiprocessing_context="spawn"):
        pass
