"""Load every sample in the sampler to learn its length, in every epoch."""

import time

from torch import nn, optim, rand
from torch.utils.data import DataLoader, Dataset, Sampler


class Clips(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(0.02)
        return rand(8)


class ByLength(Sampler):
    def __init__(self, clips):
        self.clips = clips

    def __len__(self):
        return len(self.clips)

    def __iter__(self):
        lengths = [len(self.clips[index]) for index in range(len(self.clips))]
        yield from sorted(range(len(lengths)), key=lengths.__getitem__)

if __name__ == "__main__":
    model = nn.Linear(8, 1)
    optimizer = optim.SGD(model.parameters(), 0.01)
    clips = Clips()
    loader = DataLoader(clips, batch_size=4, sampler=ByLength(clips), num_workers=2)
    for epoch in range(2):
        for batch in loader:
            model(batch).mean().backward()
            optimizer.step()
