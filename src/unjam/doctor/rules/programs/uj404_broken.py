"""Keep half a million strings in a list."""

from torch.utils.data import DataLoader, Dataset


class Paths(Dataset):
    def __init__(self):
        self.paths = [f"images/{number:012d}.jpg" for number in range(500000)]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return len(self.paths[index])


if __name__ == "__main__":
    for _ in DataLoader(Paths(), batch_size=256, shuffle=True, num_workers=2):
        pass
