import multiprocessing as mp, threading, torch
from torch.utils.data import IterableDataset, DataLoader
class Fed(IterableDataset):
    def __init__(self, q): self.q = q
    def __iter__(self):
        while (k := self.q.get()) is not None: yield torch.tensor(k)
if __name__ == "__main__":
    q = mp.Queue(maxsize=8)
    def feed():
        for i in range(300): q.put(i)
        q.put(None); q.put(None)
    threading.Thread(target=feed, daemon=True).start()
    s = []
    for b in DataLoader(Fed(q), 10, num_workers=2): s += b.tolist()
    assert sorted(s) == list(range(300))
