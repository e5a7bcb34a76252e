"""A worker is killed in the middle of an epoch, as the system does when memory runs out."""

import os
import signal
import tempfile

from common import loader_class, report


class Numbers:
    def __init__(self, marker):
        self.marker = marker

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 370 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        loader = loader_class()(Numbers(f"{folder}/marker"), batch_size=10, num_workers=2)
        got = [index for batch in loader for index in batch.tolist()]
    report(ok=got == list(range(1000)), text="1000 samples, each once and in order; the worker was replaced")
