import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Lines(Dataset):
    def __init__(self, n=320):
        r = random.Random(8)
        self.sizes = [r.randint(3, 60) for _ in range(n)]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        return torch.arange(self.sizes[i]) % 50 + 1


class TokenBudget(Sampler):
    """Batches hold at most `budget` tokens after padding."""

    def __init__(self, sizes, budget):
        self.sizes, self.budget = sizes, budget

    def __iter__(self):
        order = sorted(range(len(self.sizes)), key=lambda i: (self.sizes[i], random.random()))
        batches, batch = [], []
        for i in order:
            if batch and (len(batch) + 1) * self.sizes[i] > self.budget:
                batches.append(batch)
                batch = []
            batch.append(i)
        batches.append(batch)
        random.shuffle(batches)
        yield from batches


def pad(items):
    return pad_sequence(items, batch_first=True)


def main():
    ds = Lines()
    loader = DataLoader(ds, batch_sampler=TokenBudget(ds.sizes, 600), collate_fn=pad, num_workers=2)
    emb = torch.nn.Embedding(51, 6, padding_idx=0)
    for epoch in range(2):
        lines = 0
        for ids in loader:
            assert ids.numel() <= 600
            emb(ids).sum().backward()
            lines += len(ids)
        print("epoch", epoch, "lines", lines)


if __name__ == "__main__":
    main()
