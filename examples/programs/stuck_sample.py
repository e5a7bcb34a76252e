"""One sample never returns: it waits for a reply that never arrives."""

import socket

from common import loader_class, report


class Remote:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 37:
            here, self.there = socket.socketpair()
            here.recv(1)
        return index


if __name__ == "__main__":
    DataLoader = loader_class()
    options = {"on_error": "skip", "sample_timeout": 1} if DataLoader.__module__.startswith("unjam") else {}
    loader = DataLoader(Remote(), batch_size=10, num_workers=2, **options)
    count = sum(len(batch) for batch in loader)
    (error,) = loader.errors
    report(
        ok=count == 99, text=f"{count} samples; sample {error.index} waited for {error.exception.incident.waits_for}"
    )
