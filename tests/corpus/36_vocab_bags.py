import collections

import torch
from torch.utils.data import DataLoader, Dataset

TEXT = """it was late in the year and the river was high the boats lay in the
harbour and nobody spoke of the storm that had come over the hills in spring""".split()
VOCAB = {}


def build_vocab(words):
    for w, _ in collections.Counter(words).most_common():
        VOCAB[w] = len(VOCAB) + 1


class Bags(Dataset):
    def __init__(self, words, width=6, n=150):
        self.words, self.width, self.n = words, width, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        start = i % (len(self.words) - self.width)
        return torch.tensor([VOCAB.get(w, 0) for w in self.words[start:start + self.width]])


def train(epochs):
    loader = DataLoader(Bags(TEXT), batch_size=15, shuffle=True, num_workers=2,
                        multiprocessing_context="spawn", persistent_workers=True)
    emb = torch.nn.Embedding(len(VOCAB) + 1, 10)
    opt = torch.optim.SGD(emb.parameters(), lr=0.1)
    for epoch in range(epochs):
        for ids in loader:
            loss = emb(ids).mean(1).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("epoch", epoch, "loss", loss.item())


if __name__ == "__main__":
    build_vocab(TEXT)
    train(2)
