import tempfile

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


def chunks(path, size):
    for part in pd.read_csv(path, chunksize=size):
        x = torch.tensor(part[["a", "b", "c"]].values, dtype=torch.float32)
        y = torch.tensor(part["target"].values, dtype=torch.float32)
        yield x, y


class ChunkedCsv(IterableDataset):
    def __init__(self, path, size=50):
        self.path, self.size = path, size

    def __iter__(self):
        return chunks(self.path, self.size)


f = tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False)
pd.DataFrame({"a": range(1000), "b": [i % 13 for i in range(1000)], "c": [i % 7 for i in range(1000)],
              "target": [i * 0.01 for i in range(1000)]}).to_csv(f.name, index=False)

dl = DataLoader(ChunkedCsv(f.name), batch_size=None, num_workers=4)
reg = nn.Linear(3, 1)
opt = torch.optim.Adam(reg.parameters(), 1e-3)
for epoch in range(2):
    for x, y in dl:
        loss = nn.functional.mse_loss(reg(x / 100).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, loss.item())
