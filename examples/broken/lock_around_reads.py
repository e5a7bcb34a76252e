"""The same kind of files, with a lock around each read, from a store that takes its time."""

import multiprocessing
import pathlib
import tempfile
import time

from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(pathlib.Path(folder).iterdir())
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with self.lock, self.paths[index].open("rb") as file:
            time.sleep(0.008)  # the store
            return sum(file.read())


with tempfile.TemporaryDirectory() as folder:
    for number in range(300):
        pathlib.Path(folder, f"{number:04d}.bin").write_bytes(bytes([number % 256]) * 4000)
    for batch in DataLoader(Files(folder), batch_size=5, num_workers=3):
        pass
print("done")
