import json
import logging
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("manifest")
ERRORS = {code: type(f"Manifest{code}", (Exception,), {"code": code}) for code in (400, 404, 422)}


def write_manifest(root, n=120):
    for i in range(n):
        rec = {"id": i, "box": [i, i + 1, i + 5, i + 9], "label": i % 4}
        if i == 61:
            rec["box"] = rec["box"][:3]
        with open(os.path.join(root, f"{i:05d}.json"), "w") as f:
            json.dump(rec, f)


class Boxes(Dataset):
    def __init__(self, root):
        self.files = sorted(os.path.join(root, f) for f in os.listdir(root))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with open(self.files[i]) as f:
            rec = json.load(f)
        if len(rec["box"]) != 4:
            raise ERRORS[422](f"bad box in {self.files[i]}")
        return torch.tensor(rec["box"]), rec["label"]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with tempfile.TemporaryDirectory() as root:
        write_manifest(root)
        loader = DataLoader(Boxes(root), batch_size=6, num_workers=2)
        for epoch in range(2):
            area = 0
            for box, label in loader:
                area += ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])).sum().item()
            log.info("epoch %d area %d", epoch, area)
