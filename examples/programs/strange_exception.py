"""A dataset whose library raises an exception that holds a lock: nothing can pickle it."""

import threading

from common import loader_class, report


class Unreadable(Exception):
    def __init__(self, path, lock):
        super().__init__(f"{path} cannot be read")
        self.lock = lock


class Files:
    lock = threading.Lock()

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 37:
            raise Unreadable("37.jpg", self.lock)
        return index


if __name__ == "__main__":
    DataLoader = loader_class()
    try:
        for _ in DataLoader(Files(), batch_size=10, num_workers=2, multiprocessing_context="fork"):
            pass
    except Unreadable as error:
        report(ok=True, text=f"{type(error).__name__}: {error}; {error.__notes__[0]}")
