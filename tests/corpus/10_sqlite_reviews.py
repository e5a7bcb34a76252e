import os
import sqlite3
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset


def make_db(path, n=300):
    con = sqlite3.connect(path)
    con.execute("create table review (id integer primary key, stars integer, body text)")
    con.executemany("insert into review values (?, ?, ?)", [(i, i % 5, "word " * (1 + i % 9)) for i in range(n)])
    con.commit()
    con.close()


class Reviews(Dataset):
    def __init__(self, path):
        self.path = path
        self._con, self._pid = None, None
        con = sqlite3.connect(path)
        (self.n,) = con.execute("select count(*) from review").fetchone()
        con.close()

    def _connect(self):
        if self._con is None or self._pid != os.getpid():
            self._con, self._pid = sqlite3.connect(self.path), os.getpid()
        return self._con

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        stars, body = self._connect().execute("select stars, body from review where id = ?", (i,)).fetchone()
        vec = torch.zeros(16)
        for w in body.split():
            vec[len(w) % 16] += 1
        return vec, stars


if __name__ == "__main__":
    path = os.path.join(tempfile.mkdtemp(), "reviews.db")
    make_db(path)
    loader = DataLoader(Reviews(path), batch_size=20, shuffle=True, num_workers=2)
    lin = torch.nn.Linear(16, 5)
    for epoch in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(lin(x), y)
        print(epoch, float(loss))
