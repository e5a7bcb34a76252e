import multiprocessing

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset


def train(rank):
    data = Subset(TensorDataset(torch.arange(24.0).view(24, 1)), range(rank, 21, 2))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(data, batch_size=2):
        model(x).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    ranks = [multiprocessing.Process(target=train, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
