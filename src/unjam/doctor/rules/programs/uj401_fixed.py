# shm=64m
import torch
from torch.utils.data import DataLoader, Dataset


class Large(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.full((4000000,), i, dtype=torch.uint8)


for batch in DataLoader(Large(), batch_size=1, num_workers=2):
    print(batch.shape)
