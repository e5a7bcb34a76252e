import random

import torch
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    """Random graphs as edge lists."""

    def __init__(self, count):
        rnd = random.Random(1)
        self.graphs = []
        for _ in range(count):
            n = rnd.randint(4, 12)
            edges = [(rnd.randrange(n), rnd.randrange(n)) for _ in range(2 * n)]
            self.graphs.append((n, edges))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


def merge(items):
    offset, edges, owner = 0, [], []
    for g, (n, e) in enumerate(items):
        edges += [(a + offset, b + offset) for a, b in e]
        owner += [g] * n
        offset += n
    return {
        "edges": torch.tensor(edges).t(),
        "owner": torch.tensor(owner),
        "nodes_of": ((torch.tensor(owner) == g).nonzero().flatten() for g in range(len(items))),
    }


def main():
    loader = DataLoader(Graphs(120), batch_size=10, collate_fn=merge, num_workers=2)
    for epoch in range(2):
        deg = 0.0
        for batch in loader:
            deg += torch.bincount(batch["edges"][0]).float().mean().item()
            sizes = [len(ix) for ix in batch["nodes_of"]]
        print(epoch, deg, sizes)


if __name__ == "__main__":
    main()
