import os
import sqlite3
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset

DB = os.path.join(tempfile.mkdtemp(), "orders.sqlite")


def setup():
    with sqlite3.connect(DB) as con:
        con.execute("create table orders (id integer primary key, qty integer, price real, country text)")
        con.executemany("insert into orders(qty, price, country) values (?,?,?)",
                        [(i % 7 + 1, i * 0.25, "DE" if i % 3 else "FR") for i in range(200)])


class Orders(Dataset):
    def __init__(self, db):
        self.db = db
        self.con = None

    def __len__(self):
        return 200

    def __getitem__(self, i):
        if self.con is None:
            self.con = sqlite3.connect(self.db)
            self.con.row_factory = sqlite3.Row
        return self.con.execute("select * from orders where id = ?", (i + 1,)).fetchone()


def to_batch(rows):
    x = torch.tensor([[r["qty"], r["price"]] for r in rows])
    return x, rows


setup()
loader = DataLoader(Orders(DB), batch_size=20, collate_fn=to_batch, num_workers=2)
revenue = {}
for epoch in range(2):
    for x, rows in loader:
        for r, v in zip(rows, (x[:, 0] * x[:, 1]).tolist()):
            revenue[r["country"]] = revenue.get(r["country"], 0) + v
    print(epoch, revenue)
