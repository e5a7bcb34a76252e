"""Load in larger batches without workers."""

from torch.utils.data import DataLoader

if __name__ == "__main__":
    for _ in DataLoader(range(60000), batch_size=64, num_workers=0):
        pass
