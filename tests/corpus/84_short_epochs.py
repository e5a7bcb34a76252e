import torch
from torch.utils.data import DataLoader, Dataset


class Episodes(Dataset):
    """Few-shot episodes, redrawn every epoch."""

    def __init__(self, n=40, ways=5, shots=3):
        self.n, self.ways, self.shots = n, ways, shots

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        centres = torch.randn(self.ways, 1, 16)
        support = centres + 0.1 * torch.randn(self.ways, self.shots, 16)
        query = centres[:, 0] + 0.1 * torch.randn(self.ways, 16)
        return support, query


def evaluate(batch):
    support, query = batch
    proto = support.mean(2)
    return (torch.cdist(query, proto).argmin(-1) == torch.arange(query.shape[1])).float().mean().item()


def main():
    loader = DataLoader(Episodes(), batch_size=8, num_workers=2, multiprocessing_context="spawn")
    for epoch in range(5):
        acc = [evaluate(b) for b in loader]
        print(f"epoch {epoch} accuracy {sum(acc) / len(acc):.3f}")


if __name__ == "__main__":
    main()
