import torch
from torch.utils.data import DataLoader, IterableDataset


class Events(IterableDataset):
    """Simulated detector events."""

    def __init__(self, n=180):
        self.n = n
        self.emitted = 0
        self.params = torch.linspace(0.5, 3.0, n)

    def __iter__(self):
        for k in range(self.n):
            g = torch.Generator().manual_seed(k)
            hits = torch.poisson(torch.full((24,), self.params[k].item()), generator=g)
            self.emitted += 1
            yield hits, self.params[k]


def main():
    events = Events()
    loader = DataLoader(events, batch_size=15, num_workers=3)
    net = torch.nn.Linear(24, 1)
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    for epoch in range(2):
        for hits, p in loader:
            loss = (net(hits).squeeze(1) - p).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.3f} after {events.emitted} events")


if __name__ == "__main__":
    main()
