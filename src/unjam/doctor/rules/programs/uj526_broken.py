import torch
from torch.utils.data import DataLoader, IterableDataset


class Names(IterableDataset):
    def __init__(self):
        self.names = list(range(24))

    def __iter__(self):
        for index in range(len(self.names) // 2):
            yield torch.tensor(self.names.pop())


loader = DataLoader(Names(), batch_size=2)
for epoch in range(3):
    for batch in loader:
        pass
