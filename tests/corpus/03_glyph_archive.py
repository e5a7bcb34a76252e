import io
import tempfile
import zipfile

import numpy as np
from PIL import Image
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def build_archive(n=200, size=48):
    path = tempfile.mkdtemp() + "/glyphs.zip"
    rs = np.random.RandomState(0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for i in range(n):
            b = io.BytesIO()
            Image.fromarray(rs.randint(0, 255, (size, size), dtype=np.uint8)).save(b, "PNG")
            z.writestr("g/%d_%d.png" % (i, i % 10), b.getvalue())
    return path


class GlyphArchive(Dataset):
    def __init__(self, path):
        self.archive = zipfile.ZipFile(path)
        self.members = [m for m in self.archive.namelist() if m.endswith(".png")]

    def __len__(self):
        return len(self.members)

    def __getitem__(self, i):
        name = self.members[i]
        with self.archive.open(name) as f:
            img = Image.open(f).convert("L")
        x = torch.from_numpy(np.array(img, dtype=np.float32) / 255.0)
        return x.view(-1), int(name.rsplit("_", 1)[1][:-4])


def train():
    dl = DataLoader(GlyphArchive(build_archive()), batch_size=10, shuffle=True, num_workers=4)
    net = nn.Sequential(nn.Linear(48 * 48, 32), nn.ReLU(), nn.Linear(32, 10))
    opt = torch.optim.Adam(net.parameters())
    for ep in range(3):
        for x, y in dl:
            opt.zero_grad()
            l = nn.functional.cross_entropy(net(x), y)
            l.backward()
            opt.step()
        print("ep", ep, "loss", float(l))


if __name__ == "__main__":
    train()
