import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Instrument(Dataset):
    """Samples come from a device with a reply time of some milliseconds."""

    def __init__(self, n: int = 400, reply: float = 0.008) -> None:
        self.n = n
        self.reply = reply

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        time.sleep(self.reply)
        return np.sin(np.arange(32) * (i + 1) / 50).astype(np.float32), i % 2


def main() -> None:
    loader = DataLoader(Instrument(), batch_size=20, shuffle=True, num_workers=0)
    clf = torch.nn.Linear(32, 2)
    opt = torch.optim.Adam(clf.parameters())
    for epoch in range(2):
        began = time.monotonic()
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(clf(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
