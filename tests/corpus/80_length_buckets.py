from collections import Counter

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class Sentences(Dataset):
    def __init__(self, n=300):
        self.lengths = [5 * (1 + (i * 31) % 8) for i in range(n)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.full((self.lengths[i],), i)


class Buckets(Sampler):
    """Batches of sentences of equal length."""

    def __init__(self, lengths, size):
        self.size = size
        self.order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.lengths = lengths

    def __iter__(self):
        batch = []
        for i in self.order:
            if batch and (len(batch) == self.size or self.lengths[i] != self.lengths[batch[0]]):
                yield batch
                batch.clear()
            batch.append(i)
        if batch:
            yield batch

    def __len__(self):
        per_length = Counter(self.lengths).values()
        return sum(-(-n // self.size) for n in per_length)


def main():
    ds = Sentences()
    loader = DataLoader(ds, batch_sampler=Buckets(ds.lengths, 12), num_workers=2)
    emb = torch.nn.Embedding(300, 4)
    for epoch in range(2):
        n = 0
        for ids in loader:
            emb(ids).mean().backward()
            n += len(ids)
        print("epoch", epoch, "sentences", n)


if __name__ == "__main__":
    main()
