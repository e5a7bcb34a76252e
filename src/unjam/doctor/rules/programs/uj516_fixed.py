"""Use new workers for each epoch."""

from torch.utils.data import DataLoader, Dataset


class Course(Dataset):
    level = 0

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return index + self.level


if __name__ == "__main__":
    dataset = Course()
    loader = DataLoader(dataset, batch_size=4, num_workers=1)
    for epoch in range(2):
        dataset.level = epoch
        for _ in loader:
            pass
