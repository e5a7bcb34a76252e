"""A lambda in the dataset, with workers that are not forked from the training process."""

from common import loader_class, report
from torch.utils.data import Dataset


class Scaled(Dataset):
    def __init__(self):
        self.transform = lambda x: x * 2

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return self.transform(index)


if __name__ == "__main__":
    DataLoader = loader_class()
    # unjam uses its fork server by default; torch must be told not to fork
    options = {} if DataLoader.__module__.startswith("unjam") else {"multiprocessing_context": "spawn"}
    total = sum(int(batch.sum()) for batch in DataLoader(Scaled(), batch_size=10, num_workers=2, **options))
    report(ok=total == 9900, text="100 samples")
