import multiprocessing as mp, torch
from torch.utils.data import IterableDataset, DataLoader
class Dyn(IterableDataset):
    def __init__(self, n): self.n = n; self.cur = mp.Value("i", 0)
    def __iter__(self):
        while True:
            with self.cur.get_lock():
                a = self.cur.value
                if a >= self.n: return
                self.cur.value = a + 10
            yield from range(a, min(a + 10, self.n))
if __name__ == "__main__":
    ds = Dyn(600)
    for e in range(3):
        ds.cur.value = 0
        s = []
        for b in DataLoader(ds, 10, num_workers=2): s += b.tolist()
        assert sorted(s) == list(range(600))
