import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

df = pd.DataFrame({
    "age": [18 + i % 60 for i in range(260)],
    "device": [("phone", "tablet", "desktop")[i % 3] for i in range(260)],
    "clicked": [i % 2 for i in range(260)],
})
df.loc[181, "device"] = "watch"
DEVICES = {"phone": 0, "tablet": 1, "desktop": 2}


class Adverts(Dataset):
    def __init__(self, frame):
        self.frame = frame.reset_index(drop=True)

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, idx):
        row = self.frame.iloc[idx]
        onehot = torch.zeros(3)
        onehot[DEVICES[row["device"]]] = 1
        return torch.cat([torch.tensor([row["age"] / 100]), onehot]).float(), float(row["clicked"])


train = DataLoader(Adverts(df), batch_size=20, shuffle=True, num_workers=2)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.5)
for epoch in range(3):
    for x, y in train:
        loss = nn.functional.binary_cross_entropy_with_logits(net(x).squeeze(1), y.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
