import torch
from torch.utils.data import DataLoader, Dataset


def load_orders(n):
    return [{"amount": float(i) * 0.5, "sku": "sku-%d" % (i + 1000)} for i in range(n)]


class Customers(Dataset):
    """400 consecutive orders make one customer history."""

    def __init__(self, orders, per=400):
        self.orders = orders
        self.per = per

    def __len__(self):
        return len(self.orders) // self.per

    def __getitem__(self, c):
        history = self.orders[c * self.per:(c + 1) * self.per]
        amounts = torch.tensor([o["amount"] for o in history])
        skus = torch.tensor([len(o["sku"]) for o in history])
        return amounts, skus


if __name__ == "__main__":
    ds = Customers(load_orders(1_200_000))
    loader = DataLoader(ds, batch_size=25, num_workers=4, shuffle=True)
    lin = torch.nn.Linear(400, 1)
    for epoch in range(2):
        for amounts, skus in loader:
            loss = lin(amounts / 1e6).mean() + skus.float().mean() * 0
        print("epoch", epoch, loss.item())
