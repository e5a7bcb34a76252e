import json
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import default_collate


def dump(folder, n=200):
    for i in range(n):
        item = {"title": "news %d" % i, "score": i / n, "tags": [i % 5, i % 3]}
        if i % 23 == 7:
            item.pop("score")
        with open(f"{folder}/{i:04d}.json", "w") as f:
            json.dump(item, f)


class News(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, p) for p in os.listdir(folder))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        try:
            with open(self.paths[i]) as f:
                item = json.load(f)
            return torch.tensor(item["tags"]), torch.tensor(item["score"])
        except (OSError, KeyError, ValueError):
            return None


def collate(batch):
    return default_collate([b for b in batch if b is not None])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dump(folder)
        loader = DataLoader(News(folder), batch_size=20, shuffle=True, num_workers=2, collate_fn=collate)
        emb = torch.nn.Embedding(5, 1)
        for epoch in range(2):
            for tags, score in loader:
                loss = (emb(tags).sum((1, 2)) - score).pow(2).mean()
                loss.backward()
            print(epoch, loss.item())
