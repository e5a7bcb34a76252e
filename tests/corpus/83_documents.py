import re
import time

import torch
from torch.utils.data import DataLoader, Dataset


def ocr(pages):
    # stands for the real engine: time grows with the number of pages
    time.sleep(0.005 * pages)
    return " ".join("p%d" % k for k in range(pages))


class Documents(Dataset):
    def __init__(self):
        self.pages = [1] * 60
        self.pages[23] = 300
        self.pages[41] = 300

    def __len__(self):
        return len(self.pages)

    def __getitem__(self, i):
        words = re.findall(r"\w+", ocr(self.pages[i]))
        return torch.tensor([len(words), i])


def main():
    loader = DataLoader(Documents(), batch_size=5, num_workers=2, shuffle=True)
    for epoch in range(2):
        t = time.time()
        words = sum(int(b[:, 0].sum()) for b in loader)
        print("epoch", epoch, words, "words", round(time.time() - t, 2), "s")


if __name__ == "__main__":
    main()
