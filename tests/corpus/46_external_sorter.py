import subprocess

import torch
from torch.utils.data import DataLoader, Dataset


class Tool:
    def __init__(self, *cmd):
        self.cmd = cmd
        self.proc = None

    def ask(self, text):
        if self.proc is None:
            self.proc = subprocess.Popen(self.cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.proc.stdin.write(text + "\n")
        self.proc.stdin.flush()
        return self.proc.stdout.readline()


class Ranked(Dataset):
    def __init__(self, n=80):
        self.texts = [f"item {(i * 37) % 80}" for i in range(n)]
        self.tool = Tool("sort", "-k2,2n")

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        answer = self.tool.ask(self.texts[i])
        return torch.tensor(int(answer.split()[1]))


def main():
    loader = DataLoader(Ranked(), batch_size=8, num_workers=2)
    emb = torch.nn.Embedding(80, 4)
    for epoch in range(2):
        for ranks in loader:
            emb(ranks).sum().backward()
        print("epoch", epoch)


if __name__ == "__main__":
    main()
