import multiprocessing

import torch
from torch.utils.data import DataLoader, TensorDataset


def train(rank):
    torch.manual_seed(rank)
    data = TensorDataset(torch.arange(24.0).view(24, 1))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(data, batch_size=4, shuffle=True):
        model(x).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    ranks = [multiprocessing.Process(target=train, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
