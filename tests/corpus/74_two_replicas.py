import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Ids(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor(i), torch.sin(torch.tensor(i / 10.0))


def train(rank=0, world=2, epochs=4):
    ds = Ids(200)
    sampler = DistributedSampler(ds, num_replicas=world, rank=rank, shuffle=True)
    loader = DataLoader(ds, batch_size=10, sampler=sampler, num_workers=2)
    table = torch.zeros(200, requires_grad=True)
    opt = torch.optim.SGD([table], lr=0.1)
    for epoch in range(epochs):
        total = 0.0
        for i, y in loader:
            loss = (table[i] - y).pow(2).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"rank {rank} epoch {epoch} loss {total:.3f}")


if __name__ == "__main__":
    train()
