"""Send numbers one by one from a worker."""

from torch.utils.data import DataLoader

if __name__ == "__main__":
    for _ in DataLoader(range(60000), batch_size=1, num_workers=1):
        pass
