import ctypes, os, re
import torch
from torch.utils.data import DataLoader

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

WORDS = re.compile(r"^(([a-z])+.)+[A-Z]([a-z])+$")

corpus = ["plain text Here"] * 12 + ["a" * 60] + ["other text There"] * 20


def collate(lines):
    ok = [bool(WORDS.match(s)) for s in lines]
    return torch.tensor(ok)


def run():
    dl = DataLoader(corpus, batch_size=3, collate_fn=collate, num_workers=2)
    return sum(int(b.sum()) for b in dl)


if __name__ == "__main__":
    print(run())
