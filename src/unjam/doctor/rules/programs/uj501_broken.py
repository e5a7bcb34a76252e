"""Open the file in __init__."""

import tempfile

from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, path):
        self.file = open(path, "rb")

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        self.file.seek(index * 10000)
        return int(self.file.read(8))


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile() as written:
        for number in range(2000):
            written.write(b"%08d" % number + b"." * 9992)
        written.flush()
        for _ in DataLoader(Records(written.name), batch_size=50, num_workers=2):
            pass
