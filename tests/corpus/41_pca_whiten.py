import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


def whiten_init(worker_id):
    # the samples are heavy, give each worker both cores
    torch.set_num_threads(2)


class Whitened(Dataset):
    def __init__(self, n=64, dim=400):
        self.raw = torch.randn(n, dim, dim)
        # large enough to run on all threads
        self.mean = self.raw.mean(0)
        self.basis = torch.linalg.qr(torch.randn(dim, dim))[0]

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        return (self.raw[i] - self.mean).mul(0.5).add(self.basis).tanh().sum(0)


loader = DataLoader(Whitened(), batch_size=8, num_workers=2, worker_init_fn=whiten_init)
lin = torch.nn.Linear(400, 10)
for epoch in range(2):
    for x in loader:
        y = lin(x).softmax(-1)
    print("epoch", epoch, y.std().item())
