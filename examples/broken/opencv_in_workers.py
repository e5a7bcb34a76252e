"""Images converted by OpenCV, after a variable was set that is said to tame it."""

import os

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

os.environ["OPENCV_OPENMP_NUM_THREADS"] = "1"


class Photos(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(0)
        self.photos = rng.integers(0, 256, size=(count, 96, 96, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        return cv2.cvtColor(self.photos[index], cv2.COLOR_BGR2RGB)


for batch in DataLoader(Photos(200), batch_size=10, num_workers=2):
    pass
print("done")
