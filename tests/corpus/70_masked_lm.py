import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

MASK = 99


class Masked(Dataset):
    def __init__(self, n=160, length=24):
        self.tokens = torch.arange(n * length).reshape(n, length) % 90
        self.gen = None

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        if self.gen is None:
            info = get_worker_info()
            self.gen = torch.Generator().manual_seed(100 + (info.id if info else 0))
        row = self.tokens[i].clone()
        hide = torch.rand(len(row), generator=self.gen) < 0.15
        target = torch.where(hide, row, torch.full_like(row, -100))
        row[hide] = MASK
        return row, target


if __name__ == "__main__":
    loader = DataLoader(Masked(), batch_size=16, num_workers=2)
    emb, out = torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100)
    opt = torch.optim.Adam([*emb.parameters(), *out.parameters()], 1e-2)
    for epoch in range(4):
        for row, target in loader:
            loss = torch.nn.functional.cross_entropy(out(emb(row)).transpose(1, 2), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("epoch", epoch, round(loss.item(), 3))
