import os
import tempfile
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

# everything temporary goes below the run directory
base = tempfile.mkdtemp(prefix="runs_")
run = os.path.join(base, "experiment-resnet-small-baseline", "lr=0.001,batch=32,seed=0,augment=strong",
                   time.strftime("%Y-%m-%d"), "scratch")
os.makedirs(run)
os.environ["TMPDIR"] = run
tempfile.tempdir = None

data = TensorDataset(torch.randn(256, 20), torch.randint(0, 3, (256,)))
loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2)
model = torch.nn.Linear(20, 3)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, loss.item())
