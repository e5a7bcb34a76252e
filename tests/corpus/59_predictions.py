import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.xy = torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.xy)

    def __getitem__(self, i):
        return {"xy": self.xy[i] * 2, "radius": self.xy[i].norm(), "index": i}


@torch.no_grad()
def predict(model, loader):
    inputs = []
    scores = []
    for batch in loader:
        scores.append(model(batch["xy"]).squeeze(1))
        inputs.append(batch)
    return inputs, torch.cat(scores)


if __name__ == "__main__":
    model = torch.nn.Linear(2, 1)
    loader = DataLoader(Points(2400), batch_size=8, num_workers=2)
    inputs, scores = predict(model, loader)
    worst = scores.argsort()[:5].tolist()
    print("lowest scores:", [(k, inputs[k // 8]["radius"][k % 8].item()) for k in worst])
