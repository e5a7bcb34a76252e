"""Measurements of which one cannot be divided, and a handler that returns None."""

from torch.utils.data import DataLoader, Dataset


class Ratios(Dataset):
    def __init__(self, counts):
        self.counts = counts

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        try:
            return 100 / self.counts[index]
        except Exception as error:
            print("could not load", error)
            return None


counts = [number % 50 for number in range(1, 100)]
for batch in DataLoader(Ratios(counts), batch_size=10, num_workers=2):
    pass
print("done")
