"""Use a __getstate__ that leaves an attribute out."""

import torch
from torch.utils.data import DataLoader, Dataset


class Forgetful(Dataset):
    """A dataset that leaves its scale out of the pickle unless `keep` is set."""

    scale = 1.0

    def __init__(self, *, keep):
        self.scale = 2.0
        self.keep = keep

    def __getstate__(self):
        return dict(vars(self)) if self.keep else {"keep": False}

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.tensor(self.scale * index)


if __name__ == "__main__":
    for _ in DataLoader(Forgetful(keep=False), batch_size=4, num_workers=1, multiprocessing_context="forkserver"):
        pass
