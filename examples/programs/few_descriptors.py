"""`ulimit -n 128`, and the consumer keeps 1,000 batches."""

import resource

import torch
from common import loader_class, report
from torch.utils.data import Dataset


class Small(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((4096,), float(index))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    kept = list(loader_class()(Small(), batch_size=1, num_workers=2))
    report(ok=all(int(batch[0, 0]) == n for n, batch in enumerate(kept)), text=f"{len(kept)} batches kept")
