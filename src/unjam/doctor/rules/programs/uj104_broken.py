"""Raise an exception whose class is defined inside a function."""

from torch.utils.data import DataLoader, Dataset


def failure():
    class FailedBatch(Exception):
        pass

    return FailedBatch


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise failure()(index)
        return index


if __name__ == "__main__":
    for _ in DataLoader(Numbers(), batch_size=4, num_workers=1):
        pass
