import zlib

import torch
from torch.utils.data import DataLoader, Dataset

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()


class Documents(Dataset):
    """Every item is one document, already a batch of sentences."""

    def __init__(self, n=90):
        self.docs = [zlib.compress(" ".join(WORDS[(i * k) % 10] for k in range(200 + 37 * (i % 11))).encode())
                     for i in range(n)]

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        words = zlib.decompress(self.docs[i]).decode().split()
        ids = torch.tensor([WORDS.index(w) for w in words])
        usable = len(ids) // 10 * 10
        return {"sentences": ids[:usable].view(-1, 10), "doc": i}


loader = DataLoader(Documents(), batch_size=None, shuffle=True, num_workers=2)
emb = torch.nn.EmbeddingBag(10, 8)
for epoch in range(2):
    sentences = 0
    for doc in loader:
        emb(doc["sentences"]).mean().backward()
        sentences += len(doc["sentences"])
    print("epoch", epoch, "sentences", sentences)
