import ctypes, multiprocessing as mp, os, sqlite3, tempfile, time
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

def migrator(path, up):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    up.set()
    time.sleep(10**6)

class SqlDataset(Dataset):
    def __init__(self, path):
        self.path, self.db = path, None

    def __len__(self):
        return 20

    def __getitem__(self, i):
        if self.db is None:
            self.db = sqlite3.connect(self.path, timeout=86400)
        row = self.db.execute("SELECT x FROM samples WHERE id=?", (i,)).fetchone()
        return torch.tensor(row[0])

if __name__ == "__main__":
    path = os.path.join(tempfile.mkdtemp(), "samples.db")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, x REAL)")
        db.executemany("INSERT INTO samples VALUES (?, ?)", [(i, i / 2) for i in range(20)])
    up = mp.Event()
    mp.Process(target=migrator, args=(path, up), daemon=True, name="migrator").start()
    up.wait()
    for b in DataLoader(SqlDataset(path), batch_size=5, num_workers=1):
        print(b)
