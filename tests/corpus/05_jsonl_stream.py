import json
import os
import tempfile
from typing import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset


class JsonLines(IterableDataset):
    def __init__(self, path: str, field: str = "tokens") -> None:
        self.path = path
        self.field = field

    def __iter__(self) -> Iterator[torch.Tensor]:
        with open(self.path) as fh:
            for line in fh:
                rec = json.loads(line)
                yield torch.tensor(rec[self.field])


def prepare(path: str, n: int = 400) -> None:
    with open(path, "w") as fh:
        for i in range(n):
            fh.write(json.dumps({"id": i, "tokens": [(i * 7 + k * k) % 997 for k in range(16)]}) + "\n")


def main() -> None:
    tmp = tempfile.mkdtemp()
    path = os.path.join(tmp, "train.jsonl")
    prepare(path)
    loader = DataLoader(JsonLines(path), batch_size=25, num_workers=2)
    emb = torch.nn.EmbeddingBag(997, 8)
    opt = torch.optim.SGD(emb.parameters(), lr=0.1)
    for epoch in range(2):
        steps = 0
        for batch in loader:
            opt.zero_grad()
            emb(batch).pow(2).mean().backward()
            opt.step()
            steps += 1
        print(f"epoch {epoch}: {steps} steps")


if __name__ == "__main__":
    main()
