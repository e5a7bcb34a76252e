import torch
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, n=240):
        self.lengths = [(i * 13) % 50 + 1 for i in range(n)]
        self.truncated = 0
        self.max_len = 32

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        length = self.lengths[i]
        if length > self.max_len:
            self.truncated += 1
            length = self.max_len
        ids = torch.zeros(self.max_len, dtype=torch.long)
        ids[:length] = torch.arange(length) + i % 30
        return ids


def main():
    ds = Sentences()
    loader = DataLoader(ds, batch_size=24, shuffle=True, num_workers=2)
    emb = torch.nn.Embedding(100, 12)
    for epoch in range(2):
        for ids in loader:
            emb(ids).mean(1).norm()
        share = ds.truncated / ((epoch + 1) * len(ds))
        print(f"epoch {epoch}: {share:.1%} of sentences truncated")
        if share > 0.2:
            print("consider a larger max_len")


if __name__ == "__main__":
    main()
