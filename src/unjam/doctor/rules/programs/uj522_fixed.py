"""Give the ranks equal numbers of batches, and average over the ranks after each batch."""

import multiprocessing
import os
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset, TensorDataset


def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    data = Subset(TensorDataset(torch.arange(24.0).view(24, 1)), range(rank, 20, 2))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(data, batch_size=2):
        model(x).mean().backward()
        for weights in model.parameters():
            dist.all_reduce(weights.grad)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    place = os.path.join(tempfile.mkdtemp(), "store")
    ranks = [multiprocessing.Process(target=train, args=(rank, place)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
