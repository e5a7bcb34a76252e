import argparse

import torch
from torch.utils.data import DataLoader, Dataset

THREADS = 16


def more_threads(worker_id):
    torch.set_num_threads(THREADS)


class Covariances(Dataset):
    def __init__(self, n, dim):
        self.n, self.dim = n, dim

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        a = torch.randn(self.dim, self.dim, generator=g)
        for _ in range(6):
            a = torch.tanh(a @ a.t() / self.dim + a)
        return a.diagonal().clone()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--n", type=int, default=80)
    p.add_argument("--dim", type=int, default=320)
    args = p.parse_args()
    loader = DataLoader(Covariances(args.n, args.dim), batch_size=4, num_workers=2, worker_init_fn=more_threads,
                        multiprocessing_context="spawn", persistent_workers=True)
    for epoch in range(2):
        s = sum(float(b.sum()) for b in loader)
        print("epoch", epoch, s)


if __name__ == "__main__":
    main()
