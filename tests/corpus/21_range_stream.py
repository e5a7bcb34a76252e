import math

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Windows(IterableDataset):
    """Sliding windows over a long series."""

    def __init__(self, series, width, stride):
        self.series = series
        self.starts = list(range(0, len(series) - width + 1, stride))
        self.width = width

    def __iter__(self):
        lo, hi = 0, len(self.starts)
        info = get_worker_info()
        if info is not None:
            per = int(math.floor(hi / info.num_workers))
            lo = info.id * per
            hi = lo + per
        for s in self.starts[lo:hi]:
            yield self.series[s:s + self.width]


if __name__ == "__main__":
    series = torch.sin(torch.arange(3200) / 20.0) + 0.1 * torch.randn(3200)
    ds = Windows(series, width=64, stride=8)
    loader = DataLoader(ds, batch_size=16, num_workers=4)
    rnn = torch.nn.GRU(1, 8, batch_first=True)
    for epoch in range(2):
        for w in loader:
            out, _ = rnn(w.unsqueeze(-1))
        print("epoch", epoch, out.mean().item())
