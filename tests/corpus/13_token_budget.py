import multiprocessing as mp

import torch
from torch.utils.data import DataLoader, Dataset


class Negatives(Dataset):
    """Pairs each positive with a negative id drawn from a common pot."""

    def __init__(self, positives, pot):
        self.positives = positives
        self.pot = pot

    def __len__(self):
        return len(self.positives)

    def __getitem__(self, i):
        neg = self.pot.get()
        return torch.tensor([self.positives[i], neg])


def fill(pot, n):
    for v in torch.randperm(1000)[:n].tolist():
        pot.put(v)


def train(epochs=2):
    pot = mp.Queue()
    fill(pot, 96)
    ds = Negatives(list(range(128)), pot)
    loader = DataLoader(ds, batch_size=8, shuffle=True, num_workers=2)
    emb = torch.nn.Embedding(1000, 16)
    for ep in range(epochs):
        tot = 0.0
        for pairs in loader:
            e = emb(pairs)
            tot += (e[:, 0] * e[:, 1]).sum(-1).sigmoid().mean().item()
        print("epoch", ep, tot / len(loader))


if __name__ == "__main__":
    train()
