import torch
from torch.utils.data import DataLoader, TensorDataset

# plain online SGD, one example at a time
torch.manual_seed(1)
X = torch.randn(6_000, 4)
Y = X @ torch.tensor([1.0, -2.0, 0.5, 3.0])

loader = DataLoader(TensorDataset(X, Y), batch_size=1, shuffle=True, num_workers=2)
w = torch.zeros(4)
for epoch in range(1):
    for x, y in loader:
        err = (x[0] @ w) - y[0]
        w -= 0.001 * err * x[0]
    print("epoch", epoch, w.tolist())
