import socket
import threading

import torch
from torch.utils.data import DataLoader, Dataset


def serve(listener, labels):
    """Tiny label service: one id per connection."""
    while True:
        conn, _ = listener.accept()
        key = int(conn.recv(16))
        if key in labels:
            conn.sendall(b"%d\n" % labels[key])
            conn.close()
        else:
            pending.append(conn)


pending = []


class Labelled(Dataset):
    def __init__(self, xs, address):
        self.xs = xs
        self.address = address

    def __len__(self):
        return len(self.xs)

    def __getitem__(self, i):
        with socket.create_connection(self.address) as s:
            s.sendall(str(i).encode())
            label = int(s.recv(16))
        return self.xs[i], label


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    labels = {i: i % 2 for i in range(128) if i != 77}
    threading.Thread(target=serve, args=(listener, labels), daemon=True).start()
    ds = Labelled(torch.randn(128, 6), listener.getsockname())
    loader = DataLoader(ds, batch_size=8, num_workers=2)
    lin = torch.nn.Linear(6, 2)
    for epoch in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(lin(x), y)
        print(epoch, loss.item())
