import glob
import os
import tempfile

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

out_dir = tempfile.mkdtemp(prefix="scans_")
rng = np.random.default_rng(0)
for k in range(100):
    cv2.imwrite(os.path.join(out_dir, "scan_%03d.png" % k), rng.integers(0, 255, (96, 96), dtype=np.uint8))


class Scans(Dataset):
    def __init__(self, pattern):
        self.paths = sorted(glob.glob(pattern))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        img = cv2.imread(self.paths[index], cv2.IMREAD_GRAYSCALE)
        m = cv2.getRotationMatrix2D((48, 48), np.random.uniform(-15, 15), 1.0)
        img = cv2.warpAffine(img, m, (96, 96))
        img = cv2.resize(img, (64, 64), interpolation=cv2.INTER_AREA)
        return torch.from_numpy(img)[None].float() / 255, index % 2


loader = DataLoader(Scans(out_dir + "/*.png"), batch_size=10, shuffle=True, num_workers=2, persistent_workers=True)
net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 5, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2))
for epoch in range(3):
    for img, lab in loader:
        loss = torch.nn.functional.cross_entropy(net(img), lab)
    print("epoch", epoch, float(loss))
