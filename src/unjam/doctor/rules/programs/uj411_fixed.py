import resource

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(1_000_000)


resource.setrlimit(resource.RLIMIT_FSIZE, (400000000, resource.RLIM_INFINITY))
for batch in DataLoader(Images(), batch_size=4, num_workers=1):
    pass
