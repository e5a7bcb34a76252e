import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    """Samples made from their index by a function; without one, small tensors."""

    def __init__(self, length=24, make=None):
        self.length = length
        self.make = make

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((4,), float(index)) if self.make is None else self.make(index)


data = Numbers(16)
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in loader:
        pass
