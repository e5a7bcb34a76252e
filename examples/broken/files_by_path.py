"""Files that every worker opens by their paths, without a lock."""

import pathlib
import tempfile

from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(pathlib.Path(folder).iterdir())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with self.paths[index].open("rb") as file:
            return sum(file.read())


with tempfile.TemporaryDirectory() as folder:
    for number in range(200):
        pathlib.Path(folder, f"{number:04d}.bin").write_bytes(bytes([number]) * 4000)
    for batch in DataLoader(Files(folder), batch_size=10, num_workers=4):
        pass
print("done")
