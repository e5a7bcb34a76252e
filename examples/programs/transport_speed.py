"""How fast batches of 64 images (150 KB each) are transferred between processes."""

import torch
from common import clock, loader_class, report
from torch.utils.data import Dataset


class Images(Dataset):
    def __init__(self):
        self.images = [torch.full((3, 224, 224), n, dtype=torch.uint8) for n in range(64)]

    def __len__(self):
        return 64 * 300

    def __getitem__(self, index):
        return self.images[index % 64]


if __name__ == "__main__":
    iterator = iter(loader_class()(Images(), batch_size=64, num_workers=1))
    for _ in range(20):
        next(iterator)
    start, count = clock(), 0
    for _ in iterator:
        count += 1
        end = clock()
    speed = count * 64 * 150_528 / (end - start)
    report(ok=True, text=f"{speed / 1e9:.1f} GB/s", speed=speed)
