import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(300, 10)
y = (X.sum(1) > 0).long()

loader = DataLoader(TensorDataset(X, y), batch_size=30, shuffle=True,
                    num_workers=2, multiprocessing_context="spawn")

model = torch.nn.Linear(10, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    correct = 0
    for xb, yb in loader:
        out = model(xb)
        loss = torch.nn.functional.cross_entropy(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        correct += (out.argmax(1) == yb).sum().item()
    print("epoch", epoch, "acc", correct / len(X))
