import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Mixup(Dataset):
    def __init__(self, n=160, dim=32, alpha=0.4):
        self.x = np.random.RandomState(0).rand(n, dim).astype("float32")
        self.alpha = alpha
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        lam = self.rng.beta(self.alpha, self.alpha)
        j = self.rng.integers(len(self.x))
        return (lam * self.x[i] + (1 - lam) * self.x[j]).astype("float32")


def seed_worker(worker_id):
    # torch gives each worker and each epoch its own seed
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


def main():
    loader = DataLoader(Mixup(), batch_size=16, shuffle=True, num_workers=2, worker_init_fn=seed_worker)
    ae = torch.nn.Linear(32, 32)
    opt = torch.optim.SGD(ae.parameters(), lr=0.05)
    for epoch in range(3):
        for x in loader:
            loss = (ae(x) - x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
