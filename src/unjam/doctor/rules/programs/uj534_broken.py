import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.arange(40.0).view(40, 1)), batch_size=4, shuffle=True)
for epoch in range(2):
    for number, (x,) in enumerate(loader):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if number % 4 == 1:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 100}, "last.pt"
            )
