import torch
from torch.utils.data import DataLoader, Dataset


class Annotated(Dataset):
    def __init__(self, n=144):
        g = torch.Generator().manual_seed(1)
        self.images = torch.rand(n, 3, 12, 12, generator=g)
        self.boxes = {i: torch.tensor([1.0, 2.0, 5.0, 6.0]) for i in range(n)}
        del self.boxes[97]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        item = {"image": self.images[i], "image_id": i}
        if i in self.boxes:
            item["box"] = self.boxes[i]
        return item


def main():
    dl = DataLoader(Annotated(), batch_size=12, num_workers=2)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 4))
    for epoch in range(2):
        for sample in dl:
            if "box" in sample:
                loss = (net(sample["image"]) - sample["box"]).abs().mean()
                loss.backward()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
