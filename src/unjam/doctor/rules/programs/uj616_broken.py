"""Send samples that are lists of many small objects."""

import torch
from torch.utils.data import DataLoader, Dataset


class Events(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        return [{"at": at / 7, "kind": str(at)} for at in range(8000)]


if __name__ == "__main__":
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Events(), batch_size=16, num_workers=2, collate_fn=list)
    for epoch in range(5):
        for batch in loader:
            model(torch.rand(16, 8)).mean().backward()
            optimizer.step()
