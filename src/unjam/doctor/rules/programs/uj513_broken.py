"""Create the generator in __init__."""

from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self):
        self.lines = (number for number in range(20))

    def __iter__(self):
        return self.lines


if __name__ == "__main__":
    loader = DataLoader(Lines(), batch_size=4)
    for _ in range(2):
        for _ in loader:
            pass
