"""Read with a time limit."""

import socket
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    """Samples made from their index by a function; without one, small tensors."""

    def __init__(self, length=24, make=None):
        self.length = length
        self.make = make

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((4,), float(index)) if self.make is None else self.make(index)


def serve():
    while True:
        connection, _ = server.accept()
        time.sleep(0.1)
        connection.sendall(b"data")
        connection.close()


def make(index):
    with socket.create_connection(server.getsockname()) as connection:
        return index + len(connection.recv(4))


if __name__ == "__main__":
    timeout = 30
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    for _ in DataLoader(Numbers(16, make), batch_size=4, num_workers=1, timeout=timeout):
        pass
