"""Records of one large file, opened once."""

import tempfile

from torch.utils.data import DataLoader, Dataset

SIZE = 10_000


class Records(Dataset):
    def __init__(self, path, count):
        self.count = count
        self.file = open(path, "rb")

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.file.seek(index * SIZE)
        return int(self.file.read(8))


with tempfile.NamedTemporaryFile() as written:
    for number in range(2000):
        written.write(b"%08d" % number + bytes(SIZE - 8))
    written.flush()
    seen = []
    for batch in DataLoader(Records(written.name, 2000), batch_size=40, num_workers=4):
        seen += batch.tolist()
print(f"done: {len(set(seen))} of 2000 records came")
