"""A table that a background thread reloads, under the lock that samples take too."""

import threading
import time

from torch.utils.data import DataLoader, Dataset


class Table:
    def __init__(self):
        self.lock = threading.Lock()
        self.rows = list(range(200))
        self.reloading = threading.Event()
        threading.Thread(target=self.reload, name="reloader", daemon=True).start()
        self.reloading.wait(5)

    def reload(self):
        with self.lock:
            self.reloading.set()
            time.sleep(30)

    def row(self, index):
        with self.lock:
            return self.rows[index]


class Rows(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return self.table.row(index)


for batch in DataLoader(Rows(Table()), batch_size=10, num_workers=2):
    pass
print("done")
