import argparse
import shlex

import torch
from torch.utils.data import DataLoader, Dataset


def header_parser():
    p = argparse.ArgumentParser(prog="header")
    p.add_argument("--gain", type=float, default=1.0)
    p.add_argument("--bias", type=float, default=0.0)
    p.add_argument("--channel", type=int, default=0)
    return p


class Recordings(Dataset):
    def __init__(self, headers):
        self.headers = headers
        self.parser = header_parser()

    def __len__(self):
        return len(self.headers)

    def __getitem__(self, i):
        h = self.parser.parse_args(shlex.split(self.headers[i]))
        t = torch.linspace(0, 1, 50)
        return h.gain * torch.sin(40 * t) + h.bias, h.channel


headers = [f"--gain {1 + i % 3} --channel {i % 4}" for i in range(150)]
headers[103] = "--gain 2 --chanel 1"

if __name__ == "__main__":
    loader = DataLoader(Recordings(headers), batch_size=10, num_workers=2)
    clf = torch.nn.Linear(50, 4)
    for epoch in range(2):
        for x, ch in loader:
            loss = torch.nn.functional.cross_entropy(clf(x), ch)
        print(epoch, loss.item())
