"""A stream that does not know of its workers."""

from torch.utils.data import DataLoader, IterableDataset


class Events(IterableDataset):
    def __iter__(self):
        yield from range(300)


count = sum(len(batch) for batch in DataLoader(Events(), batch_size=10, num_workers=3))
print(f"done: {count} events of 300")
