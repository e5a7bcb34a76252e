import ctypes, os, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

_vocab, _vocab_lock = {}, threading.Lock()


def token_id(word):
    with _vocab_lock:
        return _vocab.setdefault(word, len(_vocab))


def flush_vocab(started):
    with _vocab_lock:
        started.set()
        time.sleep(1.0)   # writing the vocabulary to disk


class Sentences(Dataset):
    lines = ["the cat sat on the mat", "a dog ate my homework", "colorless green ideas"] * 20

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return torch.tensor([token_id(w) for w in self.lines[i].split()])


def pad(batch):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


def main():
    started = threading.Event()
    threading.Thread(target=flush_vocab, args=(started,), name="vocab-flush").start()
    started.wait()
    for batch in DataLoader(Sentences(), batch_size=4, collate_fn=pad, num_workers=1):
        print(batch.shape)


main()
