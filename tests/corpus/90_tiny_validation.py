import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
full = TensorDataset(torch.randn(200, 5), torch.randn(200, 1))
train_set, val_set = random_split(full, [0.9, 0.1])


def make(ds, size, train):
    return DataLoader(ds, batch_size=size, shuffle=train, drop_last=True, num_workers=2)


val = make(val_set, 32, train=False)
model = torch.nn.Linear(5, 1)


def validate():
    total = 0.0
    for x, y in val:
        total += torch.nn.functional.mse_loss(model(x), y).item()
    return total


for round_no in range(2):
    print("validation loss", validate())
