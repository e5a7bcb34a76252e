import random
from functools import partial

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VOCAB = {w: i + 1 for i, w in enumerate("the a cat dog sat ran on under mat tree fast slow".split())}


class Phrases(Dataset):
    def __init__(self, n):
        r = random.Random(0)
        words = list(VOCAB)
        self.items = [[r.choice(words) for _ in range(r.randint(2, 11))] for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return torch.tensor([VOCAB[w] for w in self.items[i]])


def pad(seqs, value=0):
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True, padding_value=value), lengths


def main():
    loader = DataLoader(Phrases(200), batch_size=16, shuffle=True, num_workers=2, collate_fn=partial(pad, value=0))
    emb = torch.nn.Embedding(len(VOCAB) + 1, 8, padding_idx=0)
    for epoch in range(2):
        for tok, n in loader:
            v = emb(tok).sum(1) / n[:, None]
        print(epoch, v.norm().item())


if __name__ == "__main__":
    main()
