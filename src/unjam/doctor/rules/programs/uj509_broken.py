"""Collect the indices in the dataset."""

from torch.utils.data import DataLoader, Dataset


class Counting(Dataset):
    def __init__(self):
        self.seen = []

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.seen.append(index)
        return index


if __name__ == "__main__":
    dataset = Counting()
    for _ in DataLoader(dataset, batch_size=4, num_workers=1):
        pass
    print(len(dataset.seen))
